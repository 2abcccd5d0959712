// SPDX-License-Identifier: Apache-2.0
// The processor's floating-point modes: how it rounds, whether it keeps subnormal numbers, what traps.
namespace gpucast {

#if defined(__SSE2__)
typedef unsigned Modes;
// Without the flags of past operations.
inline Modes modes() { return __builtin_ia32_stmxcsr() & ~0x3fu; }
inline void set_modes(Modes modes) { __builtin_ia32_ldmxcsr(modes); }
// To nearest, all kept, nothing traps.
constexpr Modes exact_modes = 0x1f80;
#elif defined(__aarch64__)
typedef unsigned long long Modes;
inline Modes modes() {
    Modes found;
    asm volatile("mrs %0, fpcr" : "=r"(found));
    return found;
}
inline void set_modes(Modes modes) { asm volatile("msr fpcr, %0" : : "r"(modes) : "memory"); }
constexpr Modes exact_modes = 0;
#else
typedef unsigned Modes;
inline Modes modes() { return 0; }
inline void set_modes(Modes) {}
constexpr Modes exact_modes = 0;
#endif

// While one of these lives, this thread rounds to nearest and keeps subnormal numbers, whatever another library has set.
struct Exactly {
    const Modes before = modes();
    // To set them takes as long as to cast a few elements.
    Exactly() {
        if (before != exact_modes) set_modes(exact_modes);
    }
    ~Exactly() {
        if (before != exact_modes) set_modes(before);
    }
};

}  // namespace gpucast
