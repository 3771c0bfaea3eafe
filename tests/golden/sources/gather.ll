define void @gather(ptr %args, i64 %lo, i64 %hi) nounwind {
entry:
  %zeros = alloca [4 x i8], align 16
  store [4 x i8] zeroinitializer, ptr %zeros, align 16
  %slot0 = getelementptr i8, ptr %args, i64 0
  %buf0 = load ptr, ptr %slot0, align 8
  %slot1 = getelementptr i8, ptr %args, i64 8
  %buf1 = load ptr, ptr %slot1, align 8
  %slot2 = getelementptr i8, ptr %args, i64 16
  %buf2 = load ptr, ptr %slot2, align 8
  br label %loop0.1
loop0.1:
  %r0.1 = phi i32 [ 0, %entry ], [ %v37, %loop0.1 ]
  %v2 = mul nsw i32 %r0.1, 4
  %v3 = zext i32 %v2 to i64
  %v4 = getelementptr i32, ptr %buf2, i64 %v3
  %v5 = load <4 x i32>, ptr %v4, align 4
  %v6 = icmp slt <4 x i32> splat (i32 -1), %v5
  %v7 = extractelement <4 x i1> %v6, i64 0
  %v8 = extractelement <4 x i32> %v5, i64 0
  %v9 = sext i32 %v8 to i64
  %v10 = getelementptr float, ptr %buf1, i64 %v9
  %v11 = select i1 %v7, ptr %v10, ptr %zeros
  %v12 = load float, ptr %v11, align 4
  %v13 = extractelement <4 x i1> %v6, i64 1
  %v14 = extractelement <4 x i32> %v5, i64 1
  %v15 = sext i32 %v14 to i64
  %v16 = getelementptr float, ptr %buf1, i64 %v15
  %v17 = select i1 %v13, ptr %v16, ptr %zeros
  %v18 = load float, ptr %v17, align 4
  %v19 = extractelement <4 x i1> %v6, i64 2
  %v20 = extractelement <4 x i32> %v5, i64 2
  %v21 = sext i32 %v20 to i64
  %v22 = getelementptr float, ptr %buf1, i64 %v21
  %v23 = select i1 %v19, ptr %v22, ptr %zeros
  %v24 = load float, ptr %v23, align 4
  %v25 = extractelement <4 x i1> %v6, i64 3
  %v26 = extractelement <4 x i32> %v5, i64 3
  %v27 = sext i32 %v26 to i64
  %v28 = getelementptr float, ptr %buf1, i64 %v27
  %v29 = select i1 %v25, ptr %v28, ptr %zeros
  %v30 = load float, ptr %v29, align 4
  %v31 = insertelement <4 x float> poison, float %v12, i64 0
  %v32 = insertelement <4 x float> %v31, float %v18, i64 1
  %v33 = insertelement <4 x float> %v32, float %v24, i64 2
  %v34 = insertelement <4 x float> %v33, float %v30, i64 3
  %v35 = zext i32 %v2 to i64
  %v36 = getelementptr float, ptr %buf0, i64 %v35
  store <4 x float> %v34, ptr %v36, align 4
  %v37 = add nuw nsw i32 %r0.1, 1
  %v38 = icmp slt i32 %v37, 4
  br i1 %v38, label %loop0.1, label %loop0.1.end
loop0.1.end:
  ret void
}
