define void @threads(ptr %args, i64 %lo, i64 %hi) nounwind align 64 {
entry:
  %slot0 = getelementptr i8, ptr %args, i64 0
  %buf0 = load ptr, ptr %slot0, align 8
  %slot1 = getelementptr i8, ptr %args, i64 8
  %buf1 = load ptr, ptr %slot1, align 8
  %1 = trunc i64 %lo to i32
  %2 = trunc i64 %hi to i32
  %4 = icmp slt i32 %1, %2
  br i1 %4, label %loop0.3, label %loop0.3.end
loop0.3:
  %r0.3 = phi i32 [ %1, %entry ], [ %12, %loop0.3 ]
  %5 = mul nsw i32 %r0.3, 4
  %6 = zext i32 %5 to i64
  %7 = getelementptr float, ptr %buf1, i64 %6
  %8 = load <4 x float>, ptr %7, align 4
  %9 = fneg <4 x float> %8
  %10 = zext i32 %5 to i64
  %11 = getelementptr float, ptr %buf0, i64 %10
  store <4 x float> %9, ptr %11, align 4
  %12 = add nuw nsw i32 %r0.3, 1
  %13 = icmp slt i32 %12, %2
  br i1 %13, label %loop0.3, label %loop0.3.end
loop0.3.end:
  ret void
}
