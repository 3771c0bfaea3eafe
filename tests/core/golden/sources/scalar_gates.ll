define void @scalar_gates(ptr %args, i64 %lo, i64 %hi) nounwind align 64 {
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
  %r0.1 = phi i32 [ 0, %entry ], [ %38, %loop0.1 ]
  %2 = mul nsw i32 %r0.1, 4
  %3 = mul nsw i32 %r0.1, 4
  %4 = icmp slt i32 0, %r0.1
  %5 = icmp slt i32 %r0.1, 6
  %6 = and i1 %4, %5
  %7 = zext i32 %3 to i64
  %8 = getelementptr float, ptr %buf1, i64 %7
  %9 = getelementptr float, ptr %8, i64 -4
  %10 = select i1 %6, ptr %9, ptr %zeros
  %11 = load <4 x float>, ptr %10, align 4
  %12 = add nsw i32 %r0.1, 1
  %13 = mul nsw i32 %12, 4
  %14 = icmp slt i32 0, %12
  %15 = icmp slt i32 %12, 6
  %16 = and i1 %14, %15
  %17 = zext i32 %13 to i64
  %18 = getelementptr float, ptr %buf1, i64 %17
  %19 = getelementptr float, ptr %18, i64 -4
  %20 = select i1 %16, ptr %19, ptr %zeros
  %21 = load <4 x float>, ptr %20, align 4
  %22 = add nsw i32 %r0.1, 2
  %23 = mul nsw i32 %22, 4
  %24 = icmp slt i32 0, %22
  %25 = icmp slt i32 %22, 6
  %26 = and i1 %24, %25
  %27 = zext i32 %23 to i64
  %28 = getelementptr float, ptr %buf1, i64 %27
  %29 = getelementptr float, ptr %28, i64 -4
  %30 = select i1 %26, ptr %29, ptr %zeros
  %31 = load <4 x float>, ptr %30, align 4
  %32 = fadd <4 x float> %11, %31
  %33 = fadd <4 x float> %32, %21
  %34 = icmp slt i32 %r0.1, 4
  %35 = zext i32 %2 to i64
  %36 = getelementptr float, ptr %buf0, i64 %35
  %37 = select i1 %34, ptr %36, ptr %trash
  store <4 x float> %33, ptr %37, align 4
  %38 = add nuw nsw i32 %r0.1, 1
  %39 = icmp slt i32 %38, 5
  br i1 %39, label %loop0.1, label %loop0.1.end
loop0.1.end:
  ret void
}
