float y = (float)x;
  uint32_t b;
  memcpy(&b, &y, sizeof b);
  if ((double)y != x && x == x) b = (b - ((double)y > x) * (x > 0) - ((double)y < x) * (x < 0)) | 1;
  memcpy(&y, &b, sizeof y);
  return y;
