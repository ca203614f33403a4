// The pause between two polls of a polling loop.

#pragma once

namespace ckv {

// Signals to the processor that this thread is waiting. The core's other hardware thread then gets
// a larger share, and leaving the loop replays no speculated loads. Takes 10 to 140 cycles on x86.
inline void PauseCpu() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace ckv
