define void @elementwise(ptr %args, i64 %lo, i64 %hi) nounwind {
entry:
  %slot0 = getelementptr i8, ptr %args, i64 0
  %buf0 = load ptr, ptr %slot0, align 8
  %slot1 = getelementptr i8, ptr %args, i64 8
  %buf1 = load ptr, ptr %slot1, align 8
  %slot2 = getelementptr i8, ptr %args, i64 16
  %buf2 = load ptr, ptr %slot2, align 8
  br label %loop0.1
loop0.1:
  %r0.1 = phi i32 [ 0, %entry ], [ %v20, %loop0.1 ]
  %v2 = mul nsw i32 %r0.1, 16
  %v3 = zext i32 %v2 to i64
  %v4 = getelementptr float, ptr %buf1, i64 %v3
  %v5 = load <8 x float>, ptr %v4, align 4
  %v6 = zext i32 %v2 to i64
  %v7 = getelementptr float, ptr %buf2, i64 %v6
  %v8 = load <8 x float>, ptr %v7, align 4
  %v9 = fmul <8 x float> %v5, %v8
  %v10 = getelementptr float, ptr %v4, i64 8
  %v11 = load <8 x float>, ptr %v10, align 4
  %v12 = getelementptr float, ptr %v7, i64 8
  %v13 = load <8 x float>, ptr %v12, align 4
  %v14 = fmul <8 x float> %v11, %v13
  %v15 = fadd <8 x float> %v9, splat (float 0x3FF0000000000000)
  %v16 = fadd <8 x float> %v14, splat (float 0x3FF0000000000000)
  %v17 = zext i32 %v2 to i64
  %v18 = getelementptr float, ptr %buf0, i64 %v17
  store <8 x float> %v15, ptr %v18, align 4
  %v19 = getelementptr float, ptr %v18, i64 8
  store <8 x float> %v16, ptr %v19, align 4
  %v20 = add nuw nsw i32 %r0.1, 1
  %v21 = icmp slt i32 %v20, 6
  br i1 %v21, label %loop0.1, label %loop0.1.end
loop0.1.end:
  ret void
}
