// Goal: no shape, cut, selection, limit, precision or bit pattern of a row makes a kernel differ
// from the obvious computation, read outside its rows, write outside its output, or let a row's
// company move a bit of it. Method: the input's first bytes choose a target, a precision, a shape
// and counts; the rest are the bits of queries, rows, scales, indices and limits, repeated to fill
// them. A third of the inputs go to the model of the tile unit. The rows of a dense piece go to up
// to four requests over the same cKV rows. Differential: every finite row of the f64 reference must
// be met within the bound of the precision, and NaN there must be NaN here. Some rows are computed
// again alone, bit for bit. Where the machine has the tile unit, it and its models have equal bits.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

#include "attention/block_kernel.h"
#include "attention/matrix/matrix_kernel.h"
#include "attention/mla_partial.h"
#include "attention/precision.h"
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
  // A bf16 of magnitude 2^-7 to 2, so that products and sums stay finite; if `wild`, now and then
  // anything.
  uint16_t Bf16(bool wild) {
    const auto bits = static_cast<uint16_t>(Next() | Next() << 8);
    if (Next() == 0xff && wild) return bits;
    return static_cast<uint16_t>((bits & 0x83ff) | 0x3c00);
  }

 private:
  const uint8_t* data_;
  size_t size_;
  size_t at_ = 0;
};

// What an input is made of, by its first bytes.
struct Plan {
  explicit Plan(Bytes& bytes);

  std::string_view target;
  bool models = false;  // the unit and its models must have the bits of the target
  Precision precision = Precision::kDefault;
  bool bf16 = false;  // the output's type
  bool fp8 = false, selected = false, limited = false;
  // Large: several panels, both columns of a block, several spans and waves; small: more tries.
  bool large = false;
  bool odd_scales = false;  // fp8 scales that are no powers of two: a row is three bf16 terms
  bool wild = false;        // now and then any bits: NaN, infinity, zero, denormal, negative
  bool poisoned = false;    // some rows are all NaN, or all infinite
};

// An equal input means the same on machines of different units: who lacks one takes the model.
std::string_view TargetOf(uint8_t choice) {
  static const std::vector<std::string_view> all = KernelTargets();
  const auto has = [](std::string_view name) {
    return std::find(all.begin(), all.end(), name) != all.end();
  };
  if (choice == 0 && has("AMX")) return "AMX";
  if (choice == 1 && has("AVX512_BF16")) return "AVX512_BF16";
  if (choice < 4) return "AMX_MODEL";
  std::vector<std::string_view> vectors;
  for (const std::string_view name : all) {
    if (!name.starts_with("AMX") && name != "AVX512_BF16") vectors.push_back(name);
  }
  return vectors[(choice - 4) % vectors.size()];
}

Plan::Plan(Bytes& bytes) {
  const uint8_t how = bytes.Next(), what = bytes.Next();
  target = TargetOf(how & 7);
  models = (how & 7) == 0;
  precision = static_cast<Precision>(how >> 3 & 3);
  bf16 = (how & 32) != 0;
  odd_scales = (how & 64) != 0;
  wild = (how & 128) != 0;
  fp8 = (what & 1) != 0;
  selected = (what & 2) != 0;
  limited = (what & 4) != 0;
  large = (what & 40) == 40;  // a quarter of all: they take a hundred times as long
  poisoned = (what & 16) != 0;
}

struct Input {
  Input(const Plan& plan, Bytes& bytes);

  AttentionShape shape;
  std::vector<uint16_t> q;
  std::vector<std::byte> rows;
  std::vector<int32_t> indices;
  std::vector<uint32_t> limits;
  std::vector<std::byte> o;
  std::vector<float> m, l;
  AttentionPiece piece;

  size_t ValueBytes() const { return piece.out.dtype == PartialDtype::kF32 ? 4 : 2; }
  double O(size_t i, uint32_t d) const {
    const std::byte* at = o.data() + (i * shape.d_v + d) * ValueBytes();
    if (piece.out.dtype == PartialDtype::kBf16) return reference::ReadBf16(at);
    float value;
    std::memcpy(&value, at, sizeof(value));
    return value;
  }

 private:
  void FillRows(const Plan& plan, Bytes& bytes);
};

float ScaleOf(const Plan& plan, Bytes& bytes) {
  if (plan.wild && bytes.Next() % 16 == 0) {
    const uint32_t bits = bytes.Below(0x10000) << 16 | bytes.Below(0x10000);
    float scale;
    std::memcpy(&scale, &bits, sizeof(scale));
    return scale;
  }
  const float fraction = plan.odd_scales ? static_cast<float>(bytes.Below(0x10000)) / 0x10000 : 0;
  return std::ldexp(1.0f + fraction, -8 + bytes.Next() % 4);
}

void Input::FillRows(const Plan& plan, Bytes& bytes) {
  const uint32_t row_bytes = piece.rows.stride_bytes;
  for (uint32_t j = 0; j < piece.rows.count; ++j) {
    std::byte* row = rows.data() + size_t{j} * row_bytes;
    uint32_t at = 0;
    if (plan.fp8) {
      for (; at < shape.d_v; ++at) {
        const uint8_t value = bytes.Next();
        const bool is_nan = (value & 0x7f) == 0x7f;
        row[at] = static_cast<std::byte>(is_nan && !plan.wild ? value ^ 1 : value);
      }
      for (uint32_t group = 0; group < shape.d_v / 128; ++group, at += 4) {
        const float scale = ScaleOf(plan, bytes);
        std::memcpy(row + at, &scale, sizeof(scale));
      }
    }
    for (; at < row_bytes; at += 2) {
      const uint16_t value = bytes.Bf16(plan.wild);
      std::memcpy(row + at, &value, sizeof(value));
    }
    if (!plan.poisoned || bytes.Next() % 32 != 0) continue;
    // 0xff is NaN in bf16, e4m3 and f32 alike; 0x7f80 and 0xff80 are infinite in bf16.
    const uint16_t poison = bytes.Next() % 2 == 0   ? 0xffff
                            : bytes.Next() % 2 == 0 ? 0x7f80
                                                    : 0xff80;
    for (uint32_t i = 0; i + 2 <= row_bytes; i += 2) std::memcpy(row + i, &poison, sizeof(poison));
  }
}

Input::Input(const Plan& plan, Bytes& bytes) {
  const bool large = plan.large, fp8 = plan.fp8;
  const uint32_t d_v =
      fp8 ? (large ? 128 + 128 * (bytes.Next() % 2) : 128) : 1 + bytes.Below(large ? 160 : 40);
  const uint32_t d_rope = 2 * bytes.Below(large ? 40 : 10) + (fp8 ? 0 : d_v % 2);
  shape = {d_v + d_rope, d_v, d_rope, fp8 ? RowDtype::kFp8DsMla : RowDtype::kBf16, 0.05f};
  const uint32_t q_count = 1 + bytes.Below(large ? 140 : 24);
  const uint32_t row_count = bytes.Below(large ? 600 : 160);
  const uint32_t row_bytes = fp8 ? d_v + d_v / 128 * 4 + d_rope * 2 : shape.d_qk * 2;
  q.resize(size_t{q_count} * shape.d_qk);
  for (uint16_t& value : q) value = bytes.Bf16(plan.wild);
  rows.resize(size_t{row_count} * row_bytes);
  piece.q = {q.data(), q_count, shape.d_qk};
  piece.rows = {rows.data(), row_count, row_bytes};
  FillRows(plan, bytes);
  const PartialDtype dtype = plan.bf16 ? PartialDtype::kBf16 : PartialDtype::kF32;
  o.assign(size_t{q_count} * d_v * (plan.bf16 ? 2 : 4), std::byte{0});
  m.assign(q_count, 0);
  l.assign(q_count, 0);
  piece.out = {o.data(), m.data(), l.data(), dtype};
  piece.precision = plan.precision;
  if (plan.selected) {
    const uint32_t k = bytes.Below(large ? 400 : 120),
                   group_rows = 1 + bytes.Below(large ? 140 : 24);
    indices.resize(std::max<size_t>(1, size_t{k} * ((q_count + group_rows - 1) / group_rows)));
    for (int32_t& index : indices) index = static_cast<int32_t>(bytes.Below(row_count + 40)) - 8;
    piece.selection = {indices.data(), k, group_rows};
  }
  if (plan.limited) {
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

// Returns the largest relative error of a weight by the terms of a precision (precision.h). Vector
// targets err less.
double PrecisionError(Precision precision) {
  return precision == Precision::kFast ? 0x1p-8 : precision == Precision::kWire ? 0x1p-17 : 0;
}

void Compare(const Input& input, const std::vector<reference::Partial>& want) {
  const bool bf16 = input.piece.out.dtype == PartialDtype::kBf16;
  const double precision =
      PrecisionError(PrecisionOf(input.piece.precision, input.piece.out.dtype));
  for (size_t i = 0; i < want.size(); ++i) {
    // NaN that a row sees makes it NaN, and no merge takes it for empty.
    if (std::isnan(want[i].l)) CKV_CHECK(std::isnan(input.l[i]) && std::isfinite(input.m[i]));
    if (!IsFinite(want[i])) continue;
    if (want[i].l == 0) {
      CKV_CHECK(input.l[i] == 0 && input.m[i] == kEmptyM);
      continue;
    }
    // Worst cases, not typical ones: 64 sums in a panel and one a panel round a logit by at most
    // 2^-24 of the absolute products each, 72 in a tile and a few folds the sums over rows, and a
    // logit's error moves every weight by as much.
    const double logit_error = 70 * 0x1p-24 * want[i].logit_abs_sum;
    const double error = 80 * 0x1p-24 + 0x1p-22 + 2 * logit_error + precision;
    const double tolerance = error * std::max(1e-30, want[i].value_abs_max) + 1e-30;
    for (uint32_t d = 0; d < input.shape.d_v; ++d) {
      const double rounded = bf16 ? 0x1p-8 * (std::fabs(want[i].o[d]) + tolerance) : 0;
      CKV_CHECK(std::fabs(input.O(i, d) - want[i].o[d]) <= tolerance + rounded);
    }
    CKV_CHECK(std::fabs(input.m[i] - want[i].m) <= logit_error + 0x1p-22 * std::fabs(want[i].m));
    const double l = input.l[i] * std::exp(double{input.m[i]} - want[i].m);
    CKV_CHECK(std::fabs(l - want[i].l) <= (error + 0x1p-22 * std::fabs(want[i].m)) * want[i].l);
  }
}

// Equal bits, but any NaN is another's equal.
bool SameBits(std::span<const std::byte> a, std::span<const std::byte> b, bool bf16) {
  if (std::memcmp(a.data(), b.data(), a.size()) == 0) return true;
  const size_t bytes = bf16 ? 2 : 4;
  for (size_t at = 0; at < a.size(); at += bytes) {
    if (std::memcmp(&a[at], &b[at], bytes) == 0) continue;
    uint32_t x = 0, y = 0;
    std::memcpy(&x, &a[at], bytes);
    std::memcpy(&y, &b[at], bytes);
    const uint32_t infinite = bf16 ? 0x7f80 : 0x7f800000, sign = bf16 ? 0x8000 : 0x80000000;
    if ((x & ~sign) <= infinite || (y & ~sign) <= infinite) return false;
  }
  return true;
}

bool SameOutput(const Input& a, size_t i, const Input& b, size_t j) {
  const size_t bytes = a.shape.d_v * a.ValueBytes();
  const bool bf16 = a.piece.out.dtype == PartialDtype::kBf16;
  return SameBits({a.o.data() + i * bytes, bytes}, {b.o.data() + j * bytes, bytes}, bf16) &&
         SameBits(std::as_bytes(std::span(&a.m[i], 1)), std::as_bytes(std::span(&b.m[j], 1)),
                  false) &&
         SameBits(std::as_bytes(std::span(&a.l[i], 1)), std::as_bytes(std::span(&b.l[j], 1)),
                  false);
}

// Query row `i` by itself must have the bits that it has in company.
void CheckAlone(const Input& input, uint32_t i, WorkerPool& pool) {
  Input alone = input;
  AttentionPiece& piece = alone.piece;
  piece.q = {input.q.data() + size_t{i} * input.shape.d_qk, 1, input.shape.d_qk};
  if (piece.selection.present()) {
    const Selection& group = input.piece.selection;
    piece.selection = {group.indices + size_t{i / group.group_rows} * group.k, group.k, 1};
  }
  if (piece.row_limits != nullptr) piece.row_limits += i;
  piece.out = {alone.o.data(), alone.m.data(), alone.l.data(), input.piece.out.dtype};
  AttendPartials(alone.shape, {&piece, 1}, pool);
  CKV_CHECK(SameOutput(input, i, alone, 0));
}

// The model in plain C++ takes a microsecond for ten of them under the address sanitizer.
constexpr size_t kModelMultiplyAddsMax = size_t{1} << 15;

// The tile unit, its model and the model in plain C++ must have the bits that `input` has.
void CheckModels(const Input& input, WorkerPool& pool) {
  std::vector<const BlockKernel*> kernels = {&matrix::PortableModelBlockKernel()};
#if defined(__x86_64__)
  if (matrix::AmxUnit().usable) kernels.push_back(&matrix::AmxBlockKernel());
#endif
  for (const BlockKernel* kernel : kernels) {
    Input again = input;
    again.piece.out = {again.o.data(), again.m.data(), again.l.data(), input.piece.out.dtype};
    AttendPartialsOn(*kernel, again.shape, {&again.piece, 1}, pool);
    for (size_t i = 0; i < input.m.size(); ++i) CKV_CHECK(SameOutput(input, i, again, i));
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
    part.out.o =
        static_cast<std::byte*>(part.out.o) + size_t{begin} * input.shape.d_v * input.ValueBytes();
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
  const Plan plan(bytes);
  CKV_CHECK(ForceKernelTarget(plan.target).ok());
  WorkerPool& pool = bytes.Next() % 2 == 0 ? one : three;
  Input input(plan, bytes);
  const uint32_t requests = plan.selected ? 1 : 1 + bytes.Next() % 4;
  AttendPartials(input.shape, CutRows(input, requests, bytes), pool);
  Compare(input, reference::Attend(input.shape, input.piece));
  for (int again = 0; again < 2; ++again) CheckAlone(input, bytes.Below(input.piece.q.count), one);
  if (plan.models && input.q.size() * input.piece.rows.count <= kModelMultiplyAddsMax)
    CheckModels(input, one);
}

}  // namespace
}  // namespace ckv

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  ckv::RunOne(data, size);
  return 0;
}
