// Goal: no shape, cut, selection, limit or bit pattern of a row makes the kernel differ from the
// obvious computation, read outside its rows or write outside its output.
// Method: the input's first bytes choose a shape, counts, a target and threads; the rest are the
// bits of queries, rows, indices and limits, repeated to fill them; the rows of a dense piece go to
// up to four requests over the same cKV rows. Differential: every finite row
// of the f64 reference must be met within the kernel's bound; what is NaN there must be NaN here.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "attention/mla_partial.h"
#include "proto/base/status.h"
#include "tests/attention/reference.h"

namespace ckv {
namespace {

// Deals the input's bytes, over and over.
class Bytes {
 public:
  Bytes(const uint8_t* data, size_t size) : data_(data), size_(size) {}

  uint8_t Next() { return size_ == 0 ? 0 : data_[at_++ % size_]; }
  uint32_t Below(uint32_t bound) { return (Next() | uint32_t{Next()} << 8) % bound; }
  // A bf16 of magnitude 2^-7 to 2, so that products and sums stay finite; now and then anything.
  uint16_t Bf16() {
    const auto bits = static_cast<uint16_t>(Next() | Next() << 8);
    if (Next() == 0xff) return bits;
    return static_cast<uint16_t>((bits & 0x83ff) | 0x3c00);
  }

 private:
  const uint8_t* data_;
  size_t size_;
  size_t at_ = 0;
};

struct Input {
  explicit Input(Bytes& bytes);

  AttentionShape shape;
  std::vector<uint16_t> q;
  std::vector<std::byte> rows;
  std::vector<int32_t> indices;
  std::vector<uint32_t> limits;
  std::vector<float> o, m, l;
  AttentionPiece piece;
};

Input::Input(Bytes& bytes) {
  const uint8_t flags = bytes.Next();
  const bool fp8 = (flags & 1) != 0, selected = (flags & 2) != 0, limited = (flags & 4) != 0;
  // Large: several panels, both columns of a block, several spans and waves; small: more tries.
  const bool large = (flags & 8) != 0;
  const uint32_t d_v = fp8 ? 128 : 1 + bytes.Below(large ? 160 : 40);
  const uint32_t d_rope = 2 * bytes.Below(large ? 40 : 10) + (fp8 ? 0 : d_v % 2);
  shape = {d_v + d_rope, d_v, d_rope, fp8 ? RowDtype::kFp8DsMla : RowDtype::kBf16, 0.05f};
  const uint32_t q_count = 1 + bytes.Below(large ? 140 : 24);
  const uint32_t row_count = bytes.Below(large ? 600 : 160);
  const uint32_t row_bytes = fp8 ? d_v + d_v / 128 * 4 + d_rope * 2 : shape.d_qk * 2;
  q.resize(size_t{q_count} * shape.d_qk);
  for (uint16_t& value : q) value = bytes.Bf16();
  rows.resize(size_t{row_count} * row_bytes);
  for (uint32_t j = 0; j < row_count; ++j) {
    std::byte* row = rows.data() + size_t{j} * row_bytes;
    uint32_t at = 0;
    if (fp8) {
      for (; at < d_v; ++at) row[at] = std::byte{bytes.Next()};
      const float scale = std::ldexp(1.0f + static_cast<float>(bytes.Next()) / 256, -8);
      std::memcpy(row + at, &scale, sizeof(scale));
      at += 4;
    }
    for (; at < row_bytes; at += 2) {
      const uint16_t value = bytes.Bf16();
      std::memcpy(row + at, &value, sizeof(value));
    }
  }
  o.assign(size_t{q_count} * d_v, 0);
  m.assign(q_count, 0);
  l.assign(q_count, 0);
  piece.q = {q.data(), q_count, shape.d_qk};
  piece.rows = {rows.data(), row_count, row_bytes};
  piece.out = {o.data(), m.data(), l.data(), PartialDtype::kF32};
  if (selected) {
    const uint32_t k = bytes.Below(large ? 400 : 120),
                   group_rows = 1 + bytes.Below(large ? 140 : 24);
    indices.resize(std::max<size_t>(1, size_t{k} * ((q_count + group_rows - 1) / group_rows)));
    for (int32_t& index : indices) index = static_cast<int32_t>(bytes.Below(row_count + 40)) - 8;
    piece.selection = {indices.data(), k, group_rows};
  }
  if (limited) {
    limits.resize(q_count);
    for (uint32_t& limit : limits) limit = bytes.Below(row_count + 40);
    piece.row_limits = limits.data();
  }
}

bool IsFinite(const reference::Partial& row) {
  bool finite = std::isfinite(row.l) && std::isfinite(row.logit_size) && row.logit_size < 1e6;
  for (const double value : row.o)
    finite = finite && std::isfinite(value) && std::fabs(value) < 1e30;
  return finite;
}

void Compare(const Input& input, const std::vector<reference::Partial>& want) {
  const uint32_t d_v = input.shape.d_v;
  for (size_t i = 0; i < want.size(); ++i) {
    if (std::isnan(want[i].l)) CKV_CHECK(std::isnan(input.l[i]));
    if (!IsFinite(want[i])) continue;
    if (want[i].l == 0) {
      CKV_CHECK(input.l[i] == 0 && input.m[i] == kEmptyM);
      continue;
    }
    // Worst cases, not typical ones: 64 sums in a panel and one a panel round a logit by at most
    // 2^-24 of the absolute products each, 72 in a tile and a few folds the sums over rows, and a
    // logit's error moves every weight by as much.
    const double logit_error = 70 * 0x1p-24 * want[i].logit_abs_sum;
    const double tolerance =
        (80 * 0x1p-24 + 0x1p-22 + 2 * logit_error) * std::max(1e-30, want[i].value_abs_max) + 1e-30;
    for (uint32_t d = 0; d < d_v; ++d) {
      CKV_CHECK(std::fabs(input.o[i * d_v + d] - want[i].o[d]) <= tolerance);
    }
  }
}

// The query rows of a dense piece as `count` requests over the same rows.
std::vector<AttentionPiece> CutRows(const Input& input, uint32_t count, Bytes& bytes) {
  std::vector<AttentionPiece> pieces;
  uint32_t begin = 0;
  for (uint32_t i = 0; i < count; ++i) {
    const uint32_t left = input.piece.q.count - begin;
    AttentionPiece part = input.piece;
    part.q.data += size_t{begin} * part.q.stride;
    part.q.count = i + 1 == count ? left : bytes.Below(left + 1);
    if (part.row_limits != nullptr) part.row_limits += begin;
    part.out.o = static_cast<float*>(part.out.o) + size_t{begin} * input.shape.d_v;
    part.out.m += begin;
    part.out.l += begin;
    begin += part.q.count;
    pieces.push_back(part);
  }
  return pieces;
}

void RunOne(const uint8_t* data, size_t size) {
  static WorkerPool one(1), three(3);
  Bytes bytes(data, size);
  const auto targets = KernelTargets();
  CKV_CHECK(ForceKernelTarget(targets[bytes.Next() % targets.size()]).ok());
  WorkerPool& pool = bytes.Next() % 2 == 0 ? one : three;
  Input input(bytes);
  const uint32_t requests = input.piece.selection.present() ? 1 : 1 + bytes.Next() % 4;
  AttendPartials(input.shape, CutRows(input, requests, bytes), pool);
  Compare(input, reference::Attend(input.shape, input.piece));
}

}  // namespace
}  // namespace ckv

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  ckv::RunOne(data, size);
  return 0;
}
