define void @gather(ptr %args, i64 %lo, i64 %hi) nounwind align 64 {
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
  %r0.1 = phi i32 [ 0, %entry ], [ %37, %loop0.1 ]
  %2 = mul nsw i32 %r0.1, 4
  %3 = zext i32 %2 to i64
  %4 = getelementptr i32, ptr %buf2, i64 %3
  %5 = load <4 x i32>, ptr %4, align 4
  %6 = icmp slt <4 x i32> splat (i32 -1), %5
  %7 = extractelement <4 x i1> %6, i64 0
  %8 = extractelement <4 x i32> %5, i64 0
  %9 = sext i32 %8 to i64
  %10 = getelementptr float, ptr %buf1, i64 %9
  %11 = select i1 %7, ptr %10, ptr %zeros
  %12 = load float, ptr %11, align 4
  %13 = extractelement <4 x i1> %6, i64 1
  %14 = extractelement <4 x i32> %5, i64 1
  %15 = sext i32 %14 to i64
  %16 = getelementptr float, ptr %buf1, i64 %15
  %17 = select i1 %13, ptr %16, ptr %zeros
  %18 = load float, ptr %17, align 4
  %19 = extractelement <4 x i1> %6, i64 2
  %20 = extractelement <4 x i32> %5, i64 2
  %21 = sext i32 %20 to i64
  %22 = getelementptr float, ptr %buf1, i64 %21
  %23 = select i1 %19, ptr %22, ptr %zeros
  %24 = load float, ptr %23, align 4
  %25 = extractelement <4 x i1> %6, i64 3
  %26 = extractelement <4 x i32> %5, i64 3
  %27 = sext i32 %26 to i64
  %28 = getelementptr float, ptr %buf1, i64 %27
  %29 = select i1 %25, ptr %28, ptr %zeros
  %30 = load float, ptr %29, align 4
  %31 = insertelement <4 x float> poison, float %12, i64 0
  %32 = insertelement <4 x float> %31, float %18, i64 1
  %33 = insertelement <4 x float> %32, float %24, i64 2
  %34 = insertelement <4 x float> %33, float %30, i64 3
  %35 = zext i32 %2 to i64
  %36 = getelementptr float, ptr %buf0, i64 %35
  store <4 x float> %34, ptr %36, align 4
  %37 = add nuw nsw i32 %r0.1, 1
  %38 = icmp slt i32 %37, 4
  br i1 %38, label %loop0.1, label %loop0.1.end
loop0.1.end:
  ret void
}
