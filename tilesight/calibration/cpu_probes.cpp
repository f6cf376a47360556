// Loops that each load one part of a CPU core, compiled as kernels are. `repeats` comes last; the barrier after each
// repetition keeps the compiler from merging them.
#include <math.h>
#include <stdint.h>

#define EXPORT extern "C"
#define AGAIN __asm__ volatile("" ::: "memory")

// A kernel library with an empty kernel: what a call costs.
EXPORT int tilesight_arity(void) { return 0; }
EXPORT int tilesight_sizes(void) { return 0; }
EXPORT int tilesight_init(void) { return 0; }
EXPORT void tilesight_unload(void) {}
EXPORT const char *tilesight_error(void) { return ""; }
EXPORT int tilesight_call(void **, void *) { return 0; }

// Additions of a register, each of which needs the one before: one a cycle. Constants would not do: some cores add
// them without executing an instruction.
EXPORT int64_t count_cycles(int64_t repeats) {
  int64_t sum = 0, one = 1;
  for (int64_t k = 0; k < repeats; k += 32) {
#if defined(__x86_64__)
    __asm__ volatile(".rept 32\n\tadd %1, %0\n\t.endr" : "+r"(sum) : "r"(one));
#elif defined(__aarch64__)
    __asm__ volatile(".rept 32\n\tadd %0, %0, %1\n\t.endr" : "+r"(sum) : "r"(one));
#else
#error "the probe of the clock is written for x86-64 and AArch64"
#endif
  }
  return sum;
}

// 8 multiply-adds for each element, in vectors: with longer chains the core would wait for their latency.
EXPORT void multiply_add(const float *__restrict x, float *__restrict y, int64_t n, int64_t repeats) {
  for (int64_t k = 0; k < repeats; ++k) {
    for (int64_t i = 0; i < n; ++i) {
      float v = x[i], s = v;
#define FOUR s = s * v + 0.25f; s = s * v + 0.5f; s = s * v + 0.25f; s = s * v + 0.5f;
      FOUR FOUR
      y[i] = s;
    }
    AGAIN;
  }
}

EXPORT float add_chain(const float *__restrict x, int64_t n, int64_t repeats) {
  float sum = 0;
  for (int64_t k = 0; k < repeats; ++k) {
    for (int64_t i = 0; i < n; ++i) sum += x[i];
    AGAIN;
  }
  return sum;
}

EXPORT void exponentials(const float *__restrict x, float *__restrict y, int64_t n, int64_t repeats) {
  for (int64_t k = 0; k < repeats; ++k) {
    for (int64_t i = 0; i < n; ++i) y[i] = expf(x[i]);
    AGAIN;
  }
}

// Eight loads for each store; n neighbours are one operand. Integers, which most cores combine faster than floats.
EXPORT void loads(const uint32_t *__restrict x, uint32_t *__restrict y, int64_t n, int64_t repeats) {
  for (int64_t k = 0; k < repeats; ++k) {
    for (int64_t i = 0; i < n; ++i)
      y[i] = ((x[i] ^ x[i + n]) ^ (x[i + 2 * n] ^ x[i + 3 * n])) ^
             ((x[i + 4 * n] ^ x[i + 5 * n]) ^ (x[i + 6 * n] ^ x[i + 7 * n]));
    AGAIN;
  }
}

EXPORT void stream(const float *__restrict x, float *__restrict y, int64_t n, int64_t repeats) {
  for (int64_t k = 0; k < repeats; ++k) {
    for (int64_t i = 0; i < n; ++i) y[i] = 2 * x[i] + 1;
    AGAIN;
  }
}
