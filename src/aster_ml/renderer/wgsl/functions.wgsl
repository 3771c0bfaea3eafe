//! Functions that WGSL lacks: 64-bit integers as two words, halves as bits, casts, MAX.
//!
//! Words are `vec2<u32>`, the low one first; a signed number is the same bits.

//: float_of_bits
fn float_of_bits(x: u32) -> f32 { return bitcast<f32>(x | args.zero); }

//: kept
fn kept(x: f32) -> f32 { return bitcast<f32>(bitcast<u32>(x) | args.zero); }

//: is_nan
fn is_nan(x: f32) -> bool { return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u; }

//: differs needs is_nan
fn differs(a: f32, b: f32) -> bool { return a != b || is_nan(a) || is_nan(b); }

//: max_float needs is_nan
fn max_float(a: f32, b: f32) -> f32 {
  let equal = bitcast<f32>(bitcast<u32>(a) & bitcast<u32>(b));
  let larger = select(select(b, equal, a == b), a, a > b);
  return select(select(larger, b, is_nan(b)), a, is_nan(a));
}

//: exp2_float needs is_nan
fn exp2_float(x: f32) -> f32 { return select(exp2(x), x, is_nan(x)); }

//: is_not_zero
//! Of a number below the normal ones too, which compilers may take for zero.
fn is_not_zero(x: f32) -> bool { return (bitcast<u32>(x) & 0x7fffffffu) != 0u; }

//: float_of_uint32
//! Either half is exact, and their sum rounded to nearest, which the built-in leaves open.
fn float_of_uint32(x: u32) -> f32 {
  return f32(x >> 16u) * 65536.0 + f32(x & 0xffffu);
}

//: int32_of_float needs is_nan
//! A float as an integer: saturating, NaN gives 0.
fn int32_of_float(x: f32) -> i32 {
  if (is_nan(x)) { return 0; }
  if (x >= 2147483648.0) { return 2147483647; }
  if (x < -2147483648.0) { return -2147483647 - 1; }
  return i32(x);
}

//: uint32_of_float needs is_nan
fn uint32_of_float(x: f32) -> u32 {
  if (is_nan(x) || x <= 0.0) { return 0u; }
  if (x >= 4294967296.0) { return 4294967295u; }
  return u32(x);
}

//: words_of_magnitude needs shl_words
fn words_of_magnitude(x: f32) -> vec2<u32> {
  let bits = bitcast<u32>(x);
  let exponent = (bits >> 23u) & 255u;
  if (exponent < 127u) { return vec2<u32>(0u, 0u); }
  let digits = vec2<u32>((bits & 0x7fffffu) | 0x800000u, 0u);
  if (exponent < 150u) { return vec2<u32>(digits.x >> (150u - exponent), 0u); }
  return shl_words(digits, exponent - 150u);
}

//: uint64_of_float needs is_nan words_of_magnitude
fn uint64_of_float(x: f32) -> vec2<u32> {
  if (is_nan(x) || x <= 0.0) { return vec2<u32>(0u, 0u); }
  if (x >= 18446744073709551616.0) { return vec2<u32>(0xffffffffu, 0xffffffffu); }
  return words_of_magnitude(x);
}

//: int64_of_float needs is_nan words_of_magnitude sub_words
fn int64_of_float(x: f32) -> vec2<u32> {
  if (is_nan(x)) { return vec2<u32>(0u, 0u); }
  if (x >= 9223372036854775808.0) { return vec2<u32>(0xffffffffu, 0x7fffffffu); }
  if (x < -9223372036854775808.0) { return vec2<u32>(0u, 0x80000000u); }
  let size = words_of_magnitude(x);
  if (x < 0.0) { return sub_words(vec2<u32>(0u, 0u), size); }
  return size;
}

//: float_of_uint64 needs shl_words float_of_uint32
//! An integer as a float, rounded to nearest: 24 bits and those below, of which one says whether
//! there are any, are exact or rounded as all of them would be.
fn float_of_uint64(x: vec2<u32>) -> f32 {
  if (x.y == 0u) { return float_of_uint32(x.x); }
  let left = countLeadingZeros(x.y);
  let moved = shl_words(x, left);
  let top = moved.y | select(0u, 1u, moved.x != 0u);
  return float_of_uint32(top) * bitcast<f32>((159u - left) << 23u);
}

//: float_of_int64 needs float_of_uint64 sub_words
fn float_of_int64(x: vec2<u32>) -> f32 {
  if ((x.y >> 31u) == 0u) { return float_of_uint64(x); }
  return -float_of_uint64(sub_words(vec2<u32>(0u, 0u), x));
}

//: words_of_int
fn words_of_int(x: i32) -> vec2<u32> { return vec2<u32>(u32(x), u32(x >> 31u)); }

//: add_words
fn add_words(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  let low = a.x + b.x;
  return vec2<u32>(low, a.y + b.y + select(0u, 1u, low < a.x));
}

//: sub_words
fn sub_words(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  return vec2<u32>(a.x - b.x, a.y - b.y - select(0u, 1u, a.x < b.x));
}

//: mul_words
fn mul_words(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  let a0 = a.x & 0xffffu;
  let a1 = a.x >> 16u;
  let b0 = b.x & 0xffffu;
  let b1 = b.x >> 16u;
  let low = a0 * b0;
  let middle = a1 * b0 + (low >> 16u);
  let other = a0 * b1 + (middle & 0xffffu);
  let high = a1 * b1 + (middle >> 16u) + (other >> 16u);
  return vec2<u32>((other << 16u) | (low & 0xffffu), high + a.x * b.y + a.y * b.x);
}

//: shl_words
fn shl_words(a: vec2<u32>, n: u32) -> vec2<u32> {
  if (n >= 64u) { return vec2<u32>(0u, 0u); }
  if (n >= 32u) { return vec2<u32>(0u, a.x << (n - 32u)); }
  if (n == 0u) { return a; }
  return vec2<u32>(a.x << n, (a.y << n) | (a.x >> (32u - n)));
}

//: shr_uint64
fn shr_uint64(a: vec2<u32>, n: u32) -> vec2<u32> {
  if (n >= 64u) { return vec2<u32>(0u, 0u); }
  if (n >= 32u) { return vec2<u32>(a.y >> (n - 32u), 0u); }
  if (n == 0u) { return a; }
  return vec2<u32>((a.x >> n) | (a.y << (32u - n)), a.y >> n);
}

//: shr_int64
fn shr_int64(a: vec2<u32>, n: u32) -> vec2<u32> {
  let sign = u32(i32(a.y) >> 31u);
  if (n >= 64u) { return vec2<u32>(sign, sign); }
  if (n >= 32u) { return vec2<u32>(u32(i32(a.y) >> (n - 32u)), sign); }
  if (n == 0u) { return a; }
  return vec2<u32>((a.x >> n) | (a.y << (32u - n)), u32(i32(a.y) >> n));
}

//: less_uint64
fn less_uint64(a: vec2<u32>, b: vec2<u32>) -> bool {
  return (a.y < b.y) | ((a.y == b.y) & (a.x < b.x));
}

//: less_int64
fn less_int64(a: vec2<u32>, b: vec2<u32>) -> bool {
  return (i32(a.y) < i32(b.y)) | ((a.y == b.y) & (a.x < b.x));
}

//: max_uint64 needs less_uint64
fn max_uint64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  return select(a, b, less_uint64(a, b));
}

//: max_int64 needs less_int64
fn max_int64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  return select(a, b, less_int64(a, b));
}

//: divide_words needs shl_words shr_uint64 less_uint64 sub_words
//! The quotient, and in the last two the remainder; by zero 0 and the number itself.
fn divide_words(a: vec2<u32>, b: vec2<u32>) -> vec4<u32> {
  if (b.x == 0u && b.y == 0u) { return vec4<u32>(0u, 0u, a); }
  if (a.y == 0u && b.y == 0u) { return vec4<u32>(a.x / b.x, 0u, a.x % b.x, 0u); }
  var quotient = vec2<u32>(0u, 0u);
  var rest = vec2<u32>(0u, 0u);
  for (var k = 0u; k < 64u; k++) {
    let over = rest.y >> 31u;
    rest = shl_words(rest, 1u);
    rest.x |= shr_uint64(a, 63u - k).x & 1u;
    quotient = shl_words(quotient, 1u);
    if (over != 0u || !less_uint64(rest, b)) {
      rest = sub_words(rest, b);
      quotient.x |= 1u;
    }
  }
  return vec4<u32>(quotient, rest);
}

//: size_of_words needs sub_words
fn size_of_words(a: vec2<u32>) -> vec2<u32> {
  return select(a, sub_words(vec2<u32>(0u, 0u), a), (a.y >> 31u) != 0u);
}

//: div_uint64 needs divide_words
fn div_uint64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  return divide_words(a, b).xy;
}

//: mod_uint64 needs divide_words
fn mod_uint64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  return divide_words(a, b).zw;
}

//: div_int64 needs divide_words size_of_words sub_words
fn div_int64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  let size = divide_words(size_of_words(a), size_of_words(b)).xy;
  return select(size, sub_words(vec2<u32>(0u, 0u), size), ((a.y ^ b.y) >> 31u) != 0u);
}

//: mod_int64 needs divide_words size_of_words sub_words
fn mod_int64(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  let size = divide_words(size_of_words(a), size_of_words(b)).zw;
  return select(size, sub_words(vec2<u32>(0u, 0u), size), (a.y >> 31u) != 0u);
}

//: count_of_words
//! A count of a shift as 32 bits, of which one that is negative or large is beyond all widths.
fn count_of_words(n: vec2<u32>) -> u32 {
  return select(n.x, 0xffffffffu, n.y != 0u);
}

//: half_of_bits needs float_of_half
//! Not every compiler takes the bits of a half; those of the float that equals it, all do.
fn half_of_bits(x: u32) -> f16 { return f16(float_of_half(x)); }

//: bits_of_half needs half_of_float
fn bits_of_half(x: f16) -> u32 { return half_of_float(f32(x)); }

//: float_of_half needs float_of_bits
fn float_of_half(x: u32) -> f32 {
  let sign = (x & 0x8000u) << 16u;
  let size = x & 0x7fffu;
  if (size >= 0x7c00u) { return float_of_bits(sign | 0x7f800000u | ((size & 0x3ffu) << 13u)); }
  if (size >= 0x400u) { return float_of_bits(sign | ((size << 13u) + 0x38000000u)); }
  let small = f32(size) * 0.000000059604644775390625;
  return float_of_bits(sign | bitcast<u32>(small));
}

//: half_of_float
fn half_of_float(x: f32) -> u32 {
  let bits = bitcast<u32>(x);
  let sign = (bits >> 16u) & 0x8000u;
  let size = bits & 0x7fffffffu;
  if (size > 0x7f800000u) { return sign | 0x7e00u; }
  if (size >= 0x477ff000u) { return sign | 0x7c00u; }
  if (size >= 0x38800000u) {
    return sign | ((size + 0xfffu + ((size >> 13u) & 1u) - 0x38000000u) >> 13u);
  }
  if (size < 0x33000000u) { return sign; }
  let digits = (size & 0x7fffffu) | 0x800000u;
  let drop = 126u - (size >> 23u);
  let kept = digits >> drop;
  let rest = digits & ((1u << drop) - 1u);
  let tie = 1u << (drop - 1u);
  let up = rest > tie || (rest == tie && (kept & 1u) == 1u);
  return sign | (kept + select(0u, 1u, up));
}
