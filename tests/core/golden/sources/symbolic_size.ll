define void @symbolic_size(ptr %args, i64 %lo, i64 %hi) nounwind align 64 {
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
  %1 = add nsw i32 %var3, %var3
  %3 = icmp slt i32 0, %1
  br i1 %3, label %loop0.2, label %loop0.2.end
loop0.2:
  %r0.2 = phi i32 [ 0, %entry ], [ %11, %loop0.2 ]
  %4 = zext i32 %r0.2 to i64
  %5 = getelementptr float, ptr %buf2, i64 %4
  %6 = load float, ptr %5, align 4
  %7 = sitofp i64 %wide4 to float
  %8 = fmul float %6, %7
  %9 = zext i32 %r0.2 to i64
  %10 = getelementptr float, ptr %buf0, i64 %9
  store float %8, ptr %10, align 4
  %11 = add nuw nsw i32 %r0.2, 1
  %12 = icmp slt i32 %11, %1
  br i1 %12, label %loop0.2, label %loop0.2.end
loop0.2.end:
  %13 = sub nsw i32 %var3, %var3
  %15 = icmp slt i32 0, %13
  br i1 %15, label %loop2.14, label %loop2.14.end
loop2.14:
  %r2.14 = phi i32 [ 0, %loop0.2.end ], [ %21, %loop2.14 ]
  %16 = phi float [ 0x4014000000000000, %loop0.2.end ], [ %20, %loop2.14 ]
  %17 = zext i32 %r2.14 to i64
  %18 = getelementptr float, ptr %buf2, i64 %17
  %19 = load float, ptr %18, align 4
  %20 = fadd float %16, %19
  %21 = add nuw nsw i32 %r2.14, 1
  %22 = icmp slt i32 %21, %13
  br i1 %22, label %loop2.14, label %loop2.14.end
loop2.14.end:
  %23 = phi float [ 0x4014000000000000, %loop0.2.end ], [ %20, %loop2.14 ]
  store float %23, ptr %buf1, align 4
  ret void
}
