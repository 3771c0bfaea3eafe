define void @elementwise(ptr %args, i64 %lo, i64 %hi) nounwind align 64 {
entry:
  %slot0 = getelementptr i8, ptr %args, i64 0
  %buf0 = load ptr, ptr %slot0, align 8
  %slot1 = getelementptr i8, ptr %args, i64 8
  %buf1 = load ptr, ptr %slot1, align 8
  %slot2 = getelementptr i8, ptr %args, i64 16
  %buf2 = load ptr, ptr %slot2, align 8
  br label %loop0.1
loop0.1:
  %r0.1 = phi i32 [ 0, %entry ], [ %20, %loop0.1 ]
  %2 = mul nsw i32 %r0.1, 16
  %3 = zext i32 %2 to i64
  %4 = getelementptr float, ptr %buf1, i64 %3
  %5 = load <8 x float>, ptr %4, align 4
  %6 = zext i32 %2 to i64
  %7 = getelementptr float, ptr %buf2, i64 %6
  %8 = load <8 x float>, ptr %7, align 4
  %9 = fmul <8 x float> %5, %8
  %10 = getelementptr float, ptr %4, i64 8
  %11 = load <8 x float>, ptr %10, align 4
  %12 = getelementptr float, ptr %7, i64 8
  %13 = load <8 x float>, ptr %12, align 4
  %14 = fmul <8 x float> %11, %13
  %15 = fadd <8 x float> %9, splat (float 0x3FF0000000000000)
  %16 = fadd <8 x float> %14, splat (float 0x3FF0000000000000)
  %17 = zext i32 %2 to i64
  %18 = getelementptr float, ptr %buf0, i64 %17
  store <8 x float> %15, ptr %18, align 4
  %19 = getelementptr float, ptr %18, i64 8
  store <8 x float> %16, ptr %19, align 4
  %20 = add nuw nsw i32 %r0.1, 1
  %21 = icmp slt i32 %20, 6
  br i1 %21, label %loop0.1, label %loop0.1.end
loop0.1.end:
  ret void
}
