define void @masked_tail(ptr %args, i64 %lo, i64 %hi) nounwind align 64 {
entry:
  %slot0 = getelementptr i8, ptr %args, i64 0
  %buf0 = load ptr, ptr %slot0, align 8
  %slot1 = getelementptr i8, ptr %args, i64 8
  %buf1 = load ptr, ptr %slot1, align 8
  br label %loop0.1
loop0.1:
  %r0.1 = phi i32 [ 0, %entry ], [ %13, %loop0.1 ]
  %2 = mul nsw i32 %r0.1, 8
  %3 = insertelement <8 x i32> poison, i32 %2, i64 0
  %4 = shufflevector <8 x i32> %3, <8 x i32> poison, <8 x i32> zeroinitializer
  %5 = add nsw <8 x i32> %4, <i32 0, i32 1, i32 2, i32 3, i32 4, i32 5, i32 6, i32 7>
  %6 = icmp slt <8 x i32> %5, splat (i32 13)
  %7 = zext i32 %2 to i64
  %8 = getelementptr float, ptr %buf1, i64 %7
  %9 = call <8 x float> @llvm.masked.load.v8f32.p0(ptr %8, i32 4, <8 x i1> %6, <8 x float> zeroinitializer)
  %10 = fmul <8 x float> %9, splat (float 0x4000000000000000)
  %11 = zext i32 %2 to i64
  %12 = getelementptr float, ptr %buf0, i64 %11
  call void @llvm.masked.store.v8f32.p0(<8 x float> %10, ptr %12, i32 4, <8 x i1> %6)
  %13 = add nuw nsw i32 %r0.1, 1
  %14 = icmp slt i32 %13, 2
  br i1 %14, label %loop0.1, label %loop0.1.end
loop0.1.end:
  ret void
}
declare <8 x float> @llvm.masked.load.v8f32.p0(ptr, i32, <8 x i1>, <8 x float>)
declare void @llvm.masked.store.v8f32.p0(<8 x float>, ptr, i32, <8 x i1>)
