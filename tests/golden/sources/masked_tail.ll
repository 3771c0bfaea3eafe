define void @masked_tail(ptr %args, i64 %lo, i64 %hi) nounwind {
entry:
  %slot0 = getelementptr i8, ptr %args, i64 0
  %buf0 = load ptr, ptr %slot0, align 8
  %slot1 = getelementptr i8, ptr %args, i64 8
  %buf1 = load ptr, ptr %slot1, align 8
  br label %loop0.1
loop0.1:
  %r0.1 = phi i32 [ 0, %entry ], [ %v13, %loop0.1 ]
  %v2 = mul nsw i32 %r0.1, 8
  %v3 = insertelement <8 x i32> poison, i32 %v2, i64 0
  %v4 = shufflevector <8 x i32> %v3, <8 x i32> poison, <8 x i32> zeroinitializer
  %v5 = add nsw <8 x i32> %v4, <i32 0, i32 1, i32 2, i32 3, i32 4, i32 5, i32 6, i32 7>
  %v6 = icmp slt <8 x i32> %v5, splat (i32 13)
  %v7 = zext i32 %v2 to i64
  %v8 = getelementptr float, ptr %buf1, i64 %v7
  %v9 = call <8 x float> @llvm.masked.load.v8f32.p0(ptr %v8, i32 4, <8 x i1> %v6, <8 x float> zeroinitializer)
  %v10 = fmul <8 x float> %v9, splat (float 0x4000000000000000)
  %v11 = zext i32 %v2 to i64
  %v12 = getelementptr float, ptr %buf0, i64 %v11
  call void @llvm.masked.store.v8f32.p0(<8 x float> %v10, ptr %v12, i32 4, <8 x i1> %v6)
  %v13 = add nuw nsw i32 %r0.1, 1
  %v14 = icmp slt i32 %v13, 2
  br i1 %v14, label %loop0.1, label %loop0.1.end
loop0.1.end:
  ret void
}
declare <8 x float> @llvm.masked.load.v8f32.p0(ptr, i32, <8 x i1>, <8 x float>)
declare void @llvm.masked.store.v8f32.p0(<8 x float>, ptr, i32, <8 x i1>)
