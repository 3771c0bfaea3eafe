define void @sum_with_accumulators(ptr %args, i64 %lo, i64 %hi) nounwind align 64 {
entry:
  %slot0 = getelementptr i8, ptr %args, i64 0
  %buf0 = load ptr, ptr %slot0, align 8
  %slot1 = getelementptr i8, ptr %args, i64 8
  %buf1 = load ptr, ptr %slot1, align 8
  br label %loop3.1
loop3.1:
  %r3.1 = phi i32 [ 0, %entry ], [ %30, %loop3.1 ]
  %2 = phi <8 x float> [ splat (float 0x0000000000000000), %entry ], [ %26, %loop3.1 ]
  %3 = phi <8 x float> [ splat (float 0x0000000000000000), %entry ], [ %29, %loop3.1 ]
  %4 = mul nsw i32 %r3.1, 64
  %5 = zext i32 %4 to i64
  %sum6 = getelementptr float, ptr %buf1, i64 %5
  %6 = call ptr @llvm.launder.invariant.group.p0(ptr %sum6)
  %7 = load <8 x float>, ptr %6, align 4
  %8 = fadd <8 x float> %2, %7
  %9 = getelementptr float, ptr %6, i64 8
  %10 = load <8 x float>, ptr %9, align 4
  %11 = fadd <8 x float> %3, %10
  %12 = getelementptr float, ptr %6, i64 16
  %13 = load <8 x float>, ptr %12, align 4
  %14 = fadd <8 x float> %8, %13
  %15 = getelementptr float, ptr %6, i64 24
  %16 = load <8 x float>, ptr %15, align 4
  %17 = fadd <8 x float> %11, %16
  %18 = getelementptr float, ptr %6, i64 32
  %19 = load <8 x float>, ptr %18, align 4
  %20 = fadd <8 x float> %14, %19
  %21 = getelementptr float, ptr %6, i64 40
  %22 = load <8 x float>, ptr %21, align 4
  %23 = fadd <8 x float> %17, %22
  %24 = getelementptr float, ptr %6, i64 48
  %25 = load <8 x float>, ptr %24, align 4
  %26 = fadd <8 x float> %20, %25
  %27 = getelementptr float, ptr %6, i64 56
  %28 = load <8 x float>, ptr %27, align 4
  %29 = fadd <8 x float> %23, %28
  %30 = add nuw nsw i32 %r3.1, 1
  %31 = icmp slt i32 %30, 4
  br i1 %31, label %loop3.1, label %loop3.1.end
loop3.1.end:
  %32 = fadd <8 x float> %26, %29
  %33 = shufflevector <8 x float> %32, <8 x float> poison, <4 x i32> <i32 0, i32 1, i32 2, i32 3>
  %34 = shufflevector <8 x float> %32, <8 x float> poison, <4 x i32> <i32 4, i32 5, i32 6, i32 7>
  %35 = fadd <4 x float> %33, %34
  %36 = shufflevector <4 x float> %35, <4 x float> poison, <2 x i32> <i32 0, i32 1>
  %37 = shufflevector <4 x float> %35, <4 x float> poison, <2 x i32> <i32 2, i32 3>
  %38 = fadd <2 x float> %36, %37
  %39 = extractelement <2 x float> %38, i64 0
  %40 = extractelement <2 x float> %38, i64 1
  %41 = fadd float %39, %40
  store float %41, ptr %buf0, align 4
  ret void
}
declare ptr @llvm.launder.invariant.group.p0(ptr)
