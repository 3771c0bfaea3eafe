/* Where each tensor of the file goes, and how many bytes it has. */
static const struct { size_t at, nbytes; } parts[] = {
{{PARTS}}
};

/* {{NAME}}.safetensors: 8 bytes with the length of a JSON header, the header,
 * the bytes of the tensors without gaps. The header has a digest of them, and is
 * known by its own, FNV-1a of 64 bits. */
static bool {{NAME}}_read(const char *path, unsigned char *weights) {
  FILE *file = fopen(path, "rb");
  if (!file) return false;
  uint64_t hash = 0xcbf29ce484222325u;
  for (long i = 0; i < {{HEADER_NBYTES}}; i++)
    hash = (hash ^ (unsigned char)getc(file)) * 0x100000001b3u;
  bool good = hash == 0x{{DIGEST}}u;
  for (size_t i = 0; good && i < sizeof parts / sizeof *parts; i++)
    good = fread(weights + parts[i].at, 1, parts[i].nbytes, file) == parts[i].nbytes;
  good = good && getc(file) == EOF;
  fclose(file);
  return good;
}

