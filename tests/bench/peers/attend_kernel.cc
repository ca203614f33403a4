// AttendPartials as a C function, for tests/bench/peers/kernel_peer.py: the kernel alone, without
// the checks of the library's doors.

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "attention/mla_partial.h"
#include "attention/worker_pool.h"

namespace {

// DeepSeek's rows: 512 values and 64 of RoPE.
constexpr uint32_t kDqk = 576, kDv = 512, kDrope = 64;

}  // namespace

extern "C" {

// Returns the kernel target in use.
const char* attend_kernel_target() {
  static const std::string target(ckv::KernelTarget());
  return target.c_str();
}

// Attends `row_count` rows of each of `sequence_count` sequences, of `heads` query rows each.
//   q          bf16 [sequence_count x heads][576]
//   rows       [sequence_count]: the address of each sequence's rows, bf16 [row_count][576]. If
//   `shared` is not 0, only
//              the first counts, and all query rows attend its rows.
//   o          bf16 [sequence_count x heads][512]
//   m, l       f32 [sequence_count x heads]
//   precision  as ckv::Precision
void attend_kernel(const uint16_t* q, uint32_t sequence_count, uint32_t heads, const uint64_t* rows,
                   uint32_t row_count, float scale, uint16_t* o, float* m, float* l,
                   int thread_count, int precision, int shared) {
  static std::map<int, ckv::WorkerPool> pools;
  ckv::AttentionShape shape;
  shape.d_qk = kDqk;
  shape.d_v = kDv;
  shape.d_rope = kDrope;
  shape.softmax_scale = scale;
  const uint32_t query_rows = shared != 0 ? sequence_count * heads : heads;
  std::vector<ckv::AttentionPiece> pieces(shared != 0 ? 1 : sequence_count);
  for (size_t i = 0; i < pieces.size(); ++i) {
    pieces[i].q = {q + i * heads * kDqk, query_rows, kDqk};
    // NOLINTNEXTLINE(performance-no-int-to-ptr): Python passes addresses as integers
    pieces[i].rows = {reinterpret_cast<const std::byte*>(rows[i]), row_count, kDqk * 2};
    pieces[i].precision = static_cast<ckv::Precision>(precision);
    pieces[i].out = {reinterpret_cast<std::byte*>(o + i * heads * kDv), m + i * heads,
                     l + i * heads, ckv::PartialDtype::kBf16};
  }
  ckv::AttendPartials(shape, pieces, pools.try_emplace(thread_count, thread_count).first->second);
}

}  // extern "C"
