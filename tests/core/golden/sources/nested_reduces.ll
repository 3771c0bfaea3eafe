define void @nested_reduces(ptr %args, i64 %lo, i64 %hi) nounwind align 64 {
entry:
  %slot0 = getelementptr i8, ptr %args, i64 0
  %buf0 = load ptr, ptr %slot0, align 8
  %slot1 = getelementptr i8, ptr %args, i64 8
  %buf1 = load ptr, ptr %slot1, align 8
  br label %loop0.1
loop0.1:
  %r0.1 = phi i32 [ 0, %entry ], [ %22, %loop2.2.end ]
  br label %loop2.2
loop2.2:
  %r2.2 = phi i32 [ 0, %loop0.1 ], [ %18, %loop4.7.end ]
  %3 = phi float [ 0xFFF0000000000000, %loop0.1 ], [ %17, %loop4.7.end ]
  %4 = mul nsw i32 %r0.1, 20
  %5 = mul nsw i32 %r2.2, 5
  %6 = add nsw i32 %4, %5
  br label %loop4.7
loop4.7:
  %r4.7 = phi i32 [ 0, %loop2.2 ], [ %14, %loop4.7 ]
  %8 = phi float [ 0x0000000000000000, %loop2.2 ], [ %13, %loop4.7 ]
  %9 = add nsw i32 %6, %r4.7
  %10 = zext i32 %9 to i64
  %11 = getelementptr float, ptr %buf1, i64 %10
  %12 = load float, ptr %11, align 4
  %13 = fadd float %8, %12
  %14 = add nuw nsw i32 %r4.7, 1
  %15 = icmp slt i32 %14, 5
  br i1 %15, label %loop4.7, label %loop4.7.end
loop4.7.end:
  %16 = fmul float %13, %13
  %17 = call float @llvm.maximum.f32(float %3, float %16)
  %18 = add nuw nsw i32 %r2.2, 1
  %19 = icmp slt i32 %18, 4
  br i1 %19, label %loop2.2, label %loop2.2.end
loop2.2.end:
  %20 = zext i32 %r0.1 to i64
  %21 = getelementptr float, ptr %buf0, i64 %20
  store float %17, ptr %21, align 4
  %22 = add nuw nsw i32 %r0.1, 1
  %23 = icmp slt i32 %22, 3
  br i1 %23, label %loop0.1, label %loop0.1.end
loop0.1.end:
  ret void
}
declare float @llvm.maximum.f32(float, float)
