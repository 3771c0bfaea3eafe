uint32_t b = (uint32_t)(x & 0x7fff) << 13, s = (uint32_t)(x & 0x8000) << 16;
  float y;
  memcpy(&y, &b, sizeof y);
  y *= 5.192296858534828e33f;
  memcpy(&b, &y, sizeof b);
  b = (x & 0x7c00) == 0x7c00 ? b | 0x7f800000u | s : b | s;
  memcpy(&y, &b, sizeof y);
  return y;
