define void @sum_with_accumulators(ptr %args, i64 %lo, i64 %hi) nounwind {
entry:
  %slot0 = getelementptr i8, ptr %args, i64 0
  %buf0 = load ptr, ptr %slot0, align 8
  %slot1 = getelementptr i8, ptr %args, i64 8
  %buf1 = load ptr, ptr %slot1, align 8
  br label %loop3.1
loop3.1:
  %r3.1 = phi i32 [ 0, %entry ], [ %v30, %loop3.1 ]
  %acc2 = phi <8 x float> [ splat (float 0x0000000000000000), %entry ], [ %v26, %loop3.1 ]
  %acc3 = phi <8 x float> [ splat (float 0x0000000000000000), %entry ], [ %v29, %loop3.1 ]
  %v4 = mul nsw i32 %r3.1, 64
  %v5 = zext i32 %v4 to i64
  %v6.sum = getelementptr float, ptr %buf1, i64 %v5
  %v6 = call ptr @llvm.launder.invariant.group.p0(ptr %v6.sum)
  %v7 = load <8 x float>, ptr %v6, align 4
  %v8 = fadd <8 x float> %acc2, %v7
  %v9 = getelementptr float, ptr %v6, i64 8
  %v10 = load <8 x float>, ptr %v9, align 4
  %v11 = fadd <8 x float> %acc3, %v10
  %v12 = getelementptr float, ptr %v6, i64 16
  %v13 = load <8 x float>, ptr %v12, align 4
  %v14 = fadd <8 x float> %v8, %v13
  %v15 = getelementptr float, ptr %v6, i64 24
  %v16 = load <8 x float>, ptr %v15, align 4
  %v17 = fadd <8 x float> %v11, %v16
  %v18 = getelementptr float, ptr %v6, i64 32
  %v19 = load <8 x float>, ptr %v18, align 4
  %v20 = fadd <8 x float> %v14, %v19
  %v21 = getelementptr float, ptr %v6, i64 40
  %v22 = load <8 x float>, ptr %v21, align 4
  %v23 = fadd <8 x float> %v17, %v22
  %v24 = getelementptr float, ptr %v6, i64 48
  %v25 = load <8 x float>, ptr %v24, align 4
  %v26 = fadd <8 x float> %v20, %v25
  %v27 = getelementptr float, ptr %v6, i64 56
  %v28 = load <8 x float>, ptr %v27, align 4
  %v29 = fadd <8 x float> %v23, %v28
  %v30 = add nuw nsw i32 %r3.1, 1
  %v31 = icmp slt i32 %v30, 4
  br i1 %v31, label %loop3.1, label %loop3.1.end
loop3.1.end:
  %v32 = fadd <8 x float> %v26, %v29
  %v33 = call reassoc float @llvm.vector.reduce.fadd.v8f32(float 0x8000000000000000, <8 x float> %v32)
  store float %v33, ptr %buf0, align 4
  ret void
}
declare ptr @llvm.launder.invariant.group.p0(ptr)
declare float @llvm.vector.reduce.fadd.v8f32(float, <8 x float>)
