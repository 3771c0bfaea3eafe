define void @nested_reduces(ptr %args, i64 %lo, i64 %hi) nounwind {
entry:
  %slot0 = getelementptr i8, ptr %args, i64 0
  %buf0 = load ptr, ptr %slot0, align 8
  %slot1 = getelementptr i8, ptr %args, i64 8
  %buf1 = load ptr, ptr %slot1, align 8
  br label %loop0.1
loop0.1:
  %r0.1 = phi i32 [ 0, %entry ], [ %v22, %loop2.2.end ]
  br label %loop2.2
loop2.2:
  %r2.2 = phi i32 [ 0, %loop0.1 ], [ %v18, %loop4.7.end ]
  %acc3 = phi float [ 0xFFF0000000000000, %loop0.1 ], [ %v17, %loop4.7.end ]
  %v4 = mul nsw i32 %r0.1, 20
  %v5 = mul nsw i32 %r2.2, 5
  %v6 = add nsw i32 %v4, %v5
  br label %loop4.7
loop4.7:
  %r4.7 = phi i32 [ 0, %loop2.2 ], [ %v14, %loop4.7 ]
  %acc8 = phi float [ 0x0000000000000000, %loop2.2 ], [ %v13, %loop4.7 ]
  %v9 = add nsw i32 %v6, %r4.7
  %v10 = zext i32 %v9 to i64
  %v11 = getelementptr float, ptr %buf1, i64 %v10
  %v12 = load float, ptr %v11, align 4
  %v13 = fadd float %acc8, %v12
  %v14 = add nuw nsw i32 %r4.7, 1
  %v15 = icmp slt i32 %v14, 5
  br i1 %v15, label %loop4.7, label %loop4.7.end
loop4.7.end:
  %v16 = fmul float %v13, %v13
  %v17 = call float @llvm.maximum.f32(float %acc3, float %v16)
  %v18 = add nuw nsw i32 %r2.2, 1
  %v19 = icmp slt i32 %v18, 4
  br i1 %v19, label %loop2.2, label %loop2.2.end
loop2.2.end:
  %v20 = zext i32 %r0.1 to i64
  %v21 = getelementptr float, ptr %buf0, i64 %v20
  store float %v17, ptr %v21, align 4
  %v22 = add nuw nsw i32 %r0.1, 1
  %v23 = icmp slt i32 %v22, 3
  br i1 %v23, label %loop0.1, label %loop0.1.end
loop0.1.end:
  ret void
}
declare float @llvm.maximum.f32(float, float)
