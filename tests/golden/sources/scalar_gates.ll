define void @scalar_gates(ptr %args, i64 %lo, i64 %hi) nounwind {
entry:
  %zeros = alloca [16 x i8], align 16
  store [16 x i8] zeroinitializer, ptr %zeros, align 16
  %trash = alloca [16 x i8], align 16
  %slot0 = getelementptr i8, ptr %args, i64 0
  %buf0 = load ptr, ptr %slot0, align 8
  %slot1 = getelementptr i8, ptr %args, i64 8
  %buf1 = load ptr, ptr %slot1, align 8
  br label %loop0.1
loop0.1:
  %r0.1 = phi i32 [ 0, %entry ], [ %v38, %loop0.1 ]
  %v2 = mul nsw i32 %r0.1, 4
  %v3 = mul nsw i32 %r0.1, 4
  %v4 = icmp slt i32 0, %r0.1
  %v5 = icmp slt i32 %r0.1, 6
  %v6 = and i1 %v4, %v5
  %v7 = zext i32 %v3 to i64
  %v8 = getelementptr float, ptr %buf1, i64 %v7
  %v9 = getelementptr float, ptr %v8, i64 -4
  %v10 = select i1 %v6, ptr %v9, ptr %zeros
  %v11 = load <4 x float>, ptr %v10, align 4
  %v12 = add nsw i32 %r0.1, 1
  %v13 = mul nsw i32 %v12, 4
  %v14 = icmp slt i32 0, %v12
  %v15 = icmp slt i32 %v12, 6
  %v16 = and i1 %v14, %v15
  %v17 = zext i32 %v13 to i64
  %v18 = getelementptr float, ptr %buf1, i64 %v17
  %v19 = getelementptr float, ptr %v18, i64 -4
  %v20 = select i1 %v16, ptr %v19, ptr %zeros
  %v21 = load <4 x float>, ptr %v20, align 4
  %v22 = add nsw i32 %r0.1, 2
  %v23 = mul nsw i32 %v22, 4
  %v24 = icmp slt i32 0, %v22
  %v25 = icmp slt i32 %v22, 6
  %v26 = and i1 %v24, %v25
  %v27 = zext i32 %v23 to i64
  %v28 = getelementptr float, ptr %buf1, i64 %v27
  %v29 = getelementptr float, ptr %v28, i64 -4
  %v30 = select i1 %v26, ptr %v29, ptr %zeros
  %v31 = load <4 x float>, ptr %v30, align 4
  %v32 = fadd <4 x float> %v11, %v31
  %v33 = fadd <4 x float> %v32, %v21
  %v34 = icmp slt i32 %r0.1, 4
  %v35 = zext i32 %v2 to i64
  %v36 = getelementptr float, ptr %buf0, i64 %v35
  %v37 = select i1 %v34, ptr %v36, ptr %trash
  store <4 x float> %v33, ptr %v37, align 4
  %v38 = add nuw nsw i32 %r0.1, 1
  %v39 = icmp slt i32 %v38, 5
  br i1 %v39, label %loop0.1, label %loop0.1.end
loop0.1.end:
  ret void
}
