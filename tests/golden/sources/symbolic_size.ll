define void @symbolic_size(ptr %args, i64 %lo, i64 %hi) nounwind {
entry:
  %slot0 = getelementptr i8, ptr %args, i64 0
  %buf0 = load ptr, ptr %slot0, align 8
  %slot1 = getelementptr i8, ptr %args, i64 8
  %buf1 = load ptr, ptr %slot1, align 8
  %slot2 = getelementptr i8, ptr %args, i64 16
  %buf2 = load ptr, ptr %slot2, align 8
  %slot3 = getelementptr i8, ptr %args, i64 24
  %wide3 = load i64, ptr %slot3, align 8
  %var3 = trunc i64 %wide3 to i32
  %slot4 = getelementptr i8, ptr %args, i64 32
  %wide4 = load i64, ptr %slot4, align 8
  %v1 = add nsw i32 %var3, %var3
  %v3 = icmp slt i32 0, %v1
  br i1 %v3, label %loop0.2, label %loop0.2.end
loop0.2:
  %r0.2 = phi i32 [ 0, %entry ], [ %v11, %loop0.2 ]
  %v4 = zext i32 %r0.2 to i64
  %v5 = getelementptr float, ptr %buf2, i64 %v4
  %v6 = load float, ptr %v5, align 4
  %v7 = sitofp i64 %wide4 to float
  %v8 = fmul float %v6, %v7
  %v9 = zext i32 %r0.2 to i64
  %v10 = getelementptr float, ptr %buf0, i64 %v9
  store float %v8, ptr %v10, align 4
  %v11 = add nuw nsw i32 %r0.2, 1
  %v12 = icmp slt i32 %v11, %v1
  br i1 %v12, label %loop0.2, label %loop0.2.end
loop0.2.end:
  %v13 = sub nsw i32 %var3, %var3
  %v15 = icmp slt i32 0, %v13
  br i1 %v15, label %loop2.14, label %loop2.14.end
loop2.14:
  %r2.14 = phi i32 [ 0, %loop0.2.end ], [ %v21, %loop2.14 ]
  %acc16 = phi float [ 0x4014000000000000, %loop0.2.end ], [ %v20, %loop2.14 ]
  %v17 = zext i32 %r2.14 to i64
  %v18 = getelementptr float, ptr %buf2, i64 %v17
  %v19 = load float, ptr %v18, align 4
  %v20 = fadd float %acc16, %v19
  %v21 = add nuw nsw i32 %r2.14, 1
  %v22 = icmp slt i32 %v21, %v13
  br i1 %v22, label %loop2.14, label %loop2.14.end
loop2.14.end:
  %v23 = phi float [ 0x4014000000000000, %loop0.2.end ], [ %v20, %loop2.14 ]
  store float %v23, ptr %buf1, align 4
  ret void
}
