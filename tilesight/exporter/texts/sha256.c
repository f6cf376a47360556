/* ---- SHA-256 (FIPS 180-4) */

static const uint32_t sha256_constants[64] = {
@CONSTANTS@
};

static uint32_t rotated(uint32_t value, int bits) { return value >> bits | value << (32 - bits); }

static void sha256_block(uint32_t state[8], const unsigned char *block) {
  uint32_t words[64], s[8];
  for (int i = 0; i < 16; i++)
    words[i] = (uint32_t)block[4 * i] << 24 | (uint32_t)block[4 * i + 1] << 16 | (uint32_t)block[4 * i + 2] << 8 |
               (uint32_t)block[4 * i + 3];
  for (int i = 16; i < 64; i++) {
    const uint32_t a = words[i - 15], b = words[i - 2];
    words[i] = words[i - 16] + (rotated(a, 7) ^ rotated(a, 18) ^ a >> 3) + words[i - 7] +
               (rotated(b, 17) ^ rotated(b, 19) ^ b >> 10);
  }
  memcpy(s, state, sizeof s);
  for (int i = 0; i < 64; i++) {
    const uint32_t choice = (s[4] & s[5]) ^ (~s[4] & s[6]);
    const uint32_t majority = (s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]);
    const uint32_t first = s[7] + (rotated(s[4], 6) ^ rotated(s[4], 11) ^ rotated(s[4], 25)) + choice +
                           sha256_constants[i] + words[i];
    const uint32_t second = (rotated(s[0], 2) ^ rotated(s[0], 13) ^ rotated(s[0], 22)) + majority;
    memmove(s + 1, s, 7 * sizeof *s);
    s[4] += first;
    s[0] = first + second;
  }
  for (int i = 0; i < 8; i++) state[i] += s[i];
}

/* Writes the hexadecimal digest of `size` bytes. */
static void sha256(const unsigned char *content, size_t size, char digest[65]) {
  uint32_t state[8] = {@INITIAL@};
  unsigned char last[128] = {0};
  const size_t whole = size / 64 * 64, rest = size - whole, end = rest < 56 ? 64 : 128;
  for (size_t at = 0; at < whole; at += 64) sha256_block(state, content + at);
  memcpy(last, content + whole, rest);
  last[rest] = 0x80;
  for (int i = 0; i < 8; i++) last[end - 1 - (size_t)i] = (unsigned char)((uint64_t)size * 8 >> 8 * i);
  for (size_t at = 0; at < end; at += 64) sha256_block(state, last + at);
  for (int i = 0; i < 8; i++) snprintf(digest + 8 * i, 9, "%08x", state[i]);
}
