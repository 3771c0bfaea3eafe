define void @threads(ptr %args, i64 %lo, i64 %hi) nounwind {
entry:
  %slot0 = getelementptr i8, ptr %args, i64 0
  %buf0 = load ptr, ptr %slot0, align 8
  %slot1 = getelementptr i8, ptr %args, i64 8
  %buf1 = load ptr, ptr %slot1, align 8
  %v1 = trunc i64 %lo to i32
  %v2 = trunc i64 %hi to i32
  %v4 = icmp slt i32 %v1, %v2
  br i1 %v4, label %loop0.3, label %loop0.3.end
loop0.3:
  %r0.3 = phi i32 [ %v1, %entry ], [ %v12, %loop0.3 ]
  %v5 = mul nsw i32 %r0.3, 4
  %v6 = zext i32 %v5 to i64
  %v7 = getelementptr float, ptr %buf1, i64 %v6
  %v8 = load <4 x float>, ptr %v7, align 4
  %v9 = fneg <4 x float> %v8
  %v10 = zext i32 %v5 to i64
  %v11 = getelementptr float, ptr %buf0, i64 %v10
  store <4 x float> %v9, ptr %v11, align 4
  %v12 = add nuw nsw i32 %r0.3, 1
  %v13 = icmp slt i32 %v12, %v2
  br i1 %v13, label %loop0.3, label %loop0.3.end
loop0.3.end:
  ret void
}
