// Goal: what a backend guarantees in addition to its arithmetic. Work is done in order, within a
// stream and across streams. Arrays are read before a call returns. A view in memory that the
// backend cannot reach is refused by name, and nothing happens.
// Method: chains of operations without a Wait between them, whose arrays are freed by then.

#include <cstring>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "attention/worker_pool.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/attention/backend_cases.h"
#include "tests/attention/random_piece.h"
#include "tests/attention/rotate_bf16.h"

namespace ckv::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// Query rows that are rotated, attended over two halves of some rows, and merged: what a holder and
// a requester do with one call.
class BackendChain : public BackendTest {
 protected:
  static constexpr uint32_t kQueries = 16, kHalf = 100;
  static constexpr uint8_t kLevels[2] = {0, 1};

  BackendChain() : piece_({.q_count = kQueries, .row_count = 2 * kHalf}, &rng_) {}

  BackendMemory Home(size_t bytes) {
    auto memory = backend_.Allocate(backend_.home(), bytes);
    CKV_CHECK(memory.ok());
    return *std::move(memory);
  }

  // All operations of the chain, on streams that the test chooses. Their arrays are freed or
  // changed when it returns.
  void Put(ComputeStream& turn, ComputeStream& attend, ComputeStream& merge) {
    ComputeStream* const turned = &turn == &attend ? nullptr : &turn;
    ComputeStream* const attended = &attend == &merge ? nullptr : &attend;
    {
      const RopeRotation rotation(RopeParams(), piece_.shape().d_rope, 1234);
      ASSERT_TRUE(
          backend_
              .Rotate(rotation, placed_q_.view.Bytes(), row_bytes_, {q_.data(), q_.kind()}, turn)
              .ok());
    }
    std::vector<AttentionPiece> pieces(2);
    for (uint32_t half = 0; half < 2; ++half) {
      AttentionPiece& piece = pieces[half];
      piece.q = {reinterpret_cast<uint16_t*>(q_.data()), kQueries, piece_.shape().d_qk, q_.kind(),
                 turned};
      piece.rows = {rows_.data() + size_t{half} * kHalf * RowBytesOf(piece_.shape()), kHalf,
                    RowBytesOf(piece_.shape()), rows_.kind()};
      piece.out = PartialIn(parts_, half * PartialFloats(kQueries, d_v_), kQueries, d_v_);
    }
    std::vector<ConstPartialView> parts = {pieces[0].out, pieces[1].out};
    ASSERT_TRUE(backend_.AttendPartials(piece_.shape(), pieces, attend).ok());
    std::fill(pieces.begin(), pieces.end(), AttentionPiece());
    std::vector<uint8_t> levels(std::begin(kLevels), std::end(kLevels));
    for (ConstPartialView& part : parts) part.after = attended;
    std::vector<MergeJob> jobs = {{.order = MergeOrder::kTree,
                                   .parts = parts,
                                   .levels = levels,
                                   .row_count = kQueries,
                                   .d_v = d_v_,
                                   .out = out_}};
    ASSERT_TRUE(backend_.Merge(jobs, merge).ok());
    std::fill(jobs.begin(), jobs.end(), MergeJob());
    std::fill(parts.begin(), parts.end(), ConstPartialView());
    std::fill(levels.begin(), levels.end(), uint8_t{63});
  }

  // The same by the functions.
  std::vector<std::byte> Want() {
    std::vector<uint16_t> q(size_t{kQueries} * piece_.shape().d_qk);
    test::CopyRotatedBf16(RopeRotation(RopeParams(), piece_.shape().d_rope, 1234),
                          piece_.piece().q.data, piece_.piece().q.stride, q.data(), kQueries,
                          piece_.shape().d_qk);
    const size_t floats = PartialFloats(kQueries, d_v_);
    std::vector<float> memory(3 * floats);
    const auto partial = [&](size_t i) -> PartialView {
      float* const o = &memory[i * floats];
      return {o, o + size_t{kQueries} * d_v_, o + size_t{kQueries} * (d_v_ + 1)};
    };
    WorkerPool pool(1);
    for (uint32_t half = 0; half < 2; ++half) {
      AttentionPiece piece = piece_.piece();
      piece.q = {q.data(), kQueries, piece_.shape().d_qk};
      piece.rows.data += size_t{half} * kHalf * piece.rows.stride_bytes;
      piece.rows.count = kHalf;
      piece.out = partial(half);
      AttendPartials(piece_.shape(), {&piece, 1}, pool);
    }
    const ConstPartialView parts[] = {partial(0), partial(1)};
    MergeTree(parts, kLevels, kQueries, d_v_, partial(2));
    const auto* const bytes = reinterpret_cast<const std::byte*>(&memory[2 * floats]);
    return {bytes, bytes + floats * sizeof(float)};
  }

  void Expect() {
    if (!under_->has_cpu_bits()) return;
    EXPECT_EQ(answer_.Read(), Want());
  }

  struct PlacedQueries {
    Placed memory;
    QueryView view;
  };
  PlacedQueries PlaceQueries() {
    const QueryView& q = piece_.piece().q;
    PlacedQueries placed = {
        Place(reach_.rotated_from, std::as_bytes(std::span(q.data, size_t{q.count} * q.stride))),
        q};
    placed.view.data = placed.memory.data<uint16_t>();
    placed.view.memory = placed.memory.kind();
    return placed;
  }

  TestPiece piece_;
  const uint32_t d_v_ = piece_.shape().d_v;
  const uint32_t row_bytes_ = piece_.shape().d_qk * 2;
  const PlacedQueries placed_q_ = PlaceQueries();
  const Placed rows_ =
      Place(reach_.rows,
            std::span(piece_.piece().rows.data, size_t{2} * kHalf * RowBytesOf(piece_.shape())));
  const BackendMemory q_ = Home(size_t{kQueries} * row_bytes_);
  const BackendMemory parts_ = Home(2 * PartialFloats(kQueries, d_v_) * sizeof(float));
  const Placed answer_ = Place(reach_.merged, PartialFloats(kQueries, d_v_) * sizeof(float));
  const PartialView out_ = {answer_.data(), answer_.data<float>() + size_t{kQueries} * d_v_,
                            answer_.data<float>() + size_t{kQueries} * (d_v_ + 1),
                            PartialDtype::kF32, answer_.kind()};
};

TEST_P(BackendChain, RunsTheWorkOfOneStreamInOrder) {
  Put(*stream_, *stream_, *stream_);
  ASSERT_TRUE(stream_->Wait().ok());
  EXPECT_TRUE(stream_->Ready());
  Expect();
}

TEST_P(BackendChain, AViewIsReadyAfterTheStreamThatItNames) {
  const auto attend = NewStream(), merge = NewStream();
  Put(*stream_, *attend, *merge);
  ASSERT_TRUE(merge->Wait().ok());
  Expect();
}

// Partials of another backend: this processor merges what a device attended, or the other way
// round.
TEST_P(BackendChain, AStreamOfAnotherBackendIsWaitedFor) {
  DeferredBackend other;
  const auto first = *other.NewStream(1);
  const QueryView q = piece_.piece().q;
  // Both reach it; the other backend did not pin it.
  const Placed host(
      under_.get(),
      reach_.rotated_from.Has(MemoryKind::kHost) ? MemoryKind::kHost : MemoryKind::kPinned,
      size_t{q.count} * q.stride * 2);
  ASSERT_TRUE(
      other.Rotate(RopeRotation(RopeParams(), 0, 0), q.Bytes(), row_bytes_, {host.data()}, *first)
          .ok());
  EXPECT_FALSE(first->Ready());
  RowView rows = {host.data(), q.count, row_bytes_, host.kind()};
  rows.after = first.get();
  const Placed copy = Place(reach_.rotated_to, size_t{q.count} * row_bytes_);
  ASSERT_TRUE(backend_
                  .Rotate(RopeRotation(RopeParams(), 0, 0), rows, row_bytes_,
                          {copy.data(), copy.kind()}, *stream_)
                  .ok());
  ASSERT_TRUE(stream_->Wait().ok());
  const auto got = copy.Read();
  EXPECT_EQ(std::memcmp(got.data(), q.data, got.size()), 0);
}

// A stream like an engine's: the backend waits for the work on it, and the engine keeps the stream.
TEST_P(BackendChain, AStreamOfSomebodyElseIsWaitedFor) {
  void* const native = under_->NewNative();
  if (native == nullptr) {
    const absl::Status refused = backend_.StreamOver(nullptr).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kUnimplemented);
    EXPECT_THAT(std::string(refused.message()), HasSubstr(std::string(backend_.kernel_target())));
    return;
  }
  const QueryView& q = piece_.piece().q;
  const size_t bytes = size_t{q.count} * q.stride * 2;
  const Placed from = Place(reach_.rotated_from, bytes);
  const Placed copy = Place(reach_.rotated_to, size_t{q.count} * row_bytes_);
  auto over = backend_.StreamOver(native);
  ASSERT_TRUE(over.ok()) << over.status();
  EXPECT_EQ(&(*over)->backend(), &backend_);
  EXPECT_TRUE((*over)->Ready());
  // Put on the stream after it was wrapped, and before the next operation.
  under_->CopyOn(native, from, std::as_bytes(std::span(q.data, bytes / 2)));
  const RowView rows = {from.data(), q.count, q.stride * 2, from.kind(), over->get()};
  ASSERT_TRUE(backend_
                  .Rotate(RopeRotation(RopeParams(), 0, 0), rows, row_bytes_,
                          {copy.data(), copy.kind()}, *stream_)
                  .ok());
  // Destroying the wrapper does not wait, and removes nothing from the stream.
  over->reset();
  ASSERT_TRUE(stream_->Wait().ok());
  const auto got = copy.Read();
  for (uint32_t row = 0; row < q.count; ++row) {
    ASSERT_EQ(
        std::memcmp(&got[size_t{row} * row_bytes_], q.data + size_t{row} * q.stride, row_bytes_), 0)
        << row;
  }
  over = backend_.StreamOver(native);
  ASSERT_TRUE(over.ok()) << over.status();
  under_->CopyOn(native, from, std::as_bytes(std::span(q.data, bytes / 2)));
  EXPECT_TRUE((*over)->Wait().ok());
  EXPECT_TRUE((*over)->Ready());
  EXPECT_TRUE(backend_.StreamOver(nullptr).ok()) << "the device's default stream";
}

TEST_P(BackendChain, AcceptsAnEmptyChain) {
  ASSERT_TRUE(backend_.AttendPartials(piece_.shape(), {}, *stream_).ok());
  ASSERT_TRUE(backend_.Merge({}, *stream_).ok());
  EXPECT_TRUE(stream_->Wait().ok());
}

TEST_P(BackendChain, MemoryIsAlignedAndGrows) {
  BackendMemory memory;
  ASSERT_TRUE(backend_.Grow(memory, 1000).ok());
  EXPECT_EQ(memory.kind(), backend_.home());
  EXPECT_GE(memory.size(), 1000u);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(memory.data()) % 64, 0u);
  const std::byte* const first = memory.data();
  ASSERT_TRUE(backend_.Grow(memory, 500).ok());
  EXPECT_EQ(memory.data(), first);
  ASSERT_TRUE(backend_.Grow(memory, 5000).ok());
  EXPECT_GE(memory.size(), 5000u);
  for (const MemoryKinds& role :
       {reach_.queries, reach_.rows, reach_.partials, reach_.parts, reach_.merged,
        reach_.rotated_from, reach_.rotated_to, reach_.scattered_from, reach_.scattered_to})
    EXPECT_TRUE(role.Has(backend_.home()));
}

TEST(DeferredBackend, MemoryThatGrowsOftenIsSeldomAllocated) {
  DeferredBackend device;
  BackendMemory memory;
  ASSERT_TRUE(device.Grow(memory, 1000).ok());
  EXPECT_EQ(memory.size(), 1000u) << "what is asked for at first";
  for (size_t bytes = 1000; bytes <= 100'000; bytes += 10) {
    ASSERT_TRUE(device.Grow(memory, bytes).ok());
    ASSERT_GE(memory.size(), bytes);
    ASSERT_LE(memory.size(), bytes + bytes / 2);
  }
  EXPECT_LE(device.allocation_count(), 13u);  // 1,000 x 1.5^12 is 129,746
  // If memory is short, Grow allocates only the requested size.
  device.LimitMemory(memory.size() + 10);
  ASSERT_TRUE(device.Grow(memory, memory.size() + 5).ok());
  EXPECT_EQ(device.Grow(memory, memory.size() + 6).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(memory.size(), 0u);
}

// Each operand in each kind of memory that it must not be in. The address is null, and never
// touched.
TEST_P(BackendChain, AViewThatIsNotReachedIsRefusedByName) {
  const RopeRotation still(RopeParams(), 0, 0);
  const uint32_t table[] = {0};
  AttentionPiece piece;
  ConstPartialView part;
  MergeJob job;
  job.order = MergeOrder::kInTurn;
  RowView rows = {nullptr, 1, 64};
  RowPlace place;
  PagedPlace paged = {.layer = {}, .table = table, .row_begin = 0, .block_rows = 1};
  const auto attend = [&] {
    return backend_.AttendPartials(piece_.shape(), {&piece, 1}, *stream_);
  };
  const auto merge = [&] {
    job.parts = {&part, 1};
    return backend_.Merge({&job, 1}, *stream_);
  };
  const auto rotate = [&] { return backend_.Rotate(still, rows, 64, place, *stream_); };
  const auto scatter = [&] { return backend_.Scatter(still, rows, 64, paged, *stream_); };
  struct Operand {
    const char* name;
    MemoryKinds reached;
    MemoryKind* memory;
    std::function<absl::Status()> call;
  };
  const Operand operands[] = {
      {"attend: query rows", reach_.queries, &piece.q.memory, attend},
      {"attend: cKV rows", reach_.rows, &piece.rows.memory, attend},
      {"attend: partials", reach_.partials, &piece.out.memory, attend},
      {"merge: parts", reach_.parts, &part.memory, merge},
      {"merge: sums", reach_.merged, &job.out.memory, merge},
      {"rotate: rows", reach_.rotated_from, &rows.memory, rotate},
      {"rotate: copied rows", reach_.rotated_to, &place.memory, rotate},
      {"scatter: rows", reach_.scattered_from, &rows.memory, scatter},
      {"scatter: blocks", reach_.scattered_to, &paged.memory, scatter},
  };
  for (const Operand& operand : operands) *operand.memory = backend_.home();
  for (const Operand& operand : operands) {
    const MemoryKind was = *operand.memory;
    for (const MemoryKind kind : {MemoryKind::kHost, MemoryKind::kPinned, MemoryKind::kDevice}) {
      if (operand.reached.Has(kind)) continue;
      *operand.memory = kind;
      const absl::Status refused = operand.call();
      EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << operand.name;
      EXPECT_THAT(std::string(refused.message()),
                  AllOf(HasSubstr(operand.name), HasSubstr(std::string(MemoryKindName(kind))),
                        HasSubstr(std::string(backend_.kernel_target()))));
    }
    *operand.memory = was;
  }
  // The stream still works.
  Put(*stream_, *stream_, *stream_);
  ASSERT_TRUE(stream_->Wait().ok());
  Expect();
}

INSTANTIATE_TEST_SUITE_P(All, BackendChain, AllBackends(), CaseName);

// This processor refuses other kinds of memory, and more memory than there is.
TEST(CpuBackend, HasHostMemoryOnlyAndReachesNoDevice) {
  Backend& cpu = *Backend::Cpu();
  EXPECT_EQ(cpu.home(), MemoryKind::kHost);
  EXPECT_FALSE(cpu.reach().rows.Has(MemoryKind::kDevice));
  const absl::Status refused = cpu.Allocate(MemoryKind::kDevice, 64).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("device"));
// These end the process.
#if !defined(CKV_TEST_ADDRESS_SANITIZER) && !defined(CKV_TEST_THREAD_SANITIZER)
  EXPECT_EQ(cpu.Allocate(MemoryKind::kHost, size_t{1} << 60).status().code(),
            absl::StatusCode::kResourceExhausted);
#endif
}

TEST(CpuBackend, HasTheNameOfItsKernels) {
  for (const std::string_view target : KernelTargets()) {
    ASSERT_TRUE(ForceKernelTarget(target).ok());
    EXPECT_EQ(Backend::Cpu()->kernel_target(), target);
  }
  ASSERT_TRUE(ForceKernelTarget("").ok());
}

// The interface's rule for errors, as a failing device shows them.
TEST(DeferredBackend, AFailedStreamStaysFailed) {
  for (const auto failure :
       {DeferredBackend::Failure::kAtCall, DeferredBackend::Failure::kAtWait}) {
    DeferredBackend device;
    const auto stream = *device.NewStream(1), other = *device.NewStream(1);
    std::byte row[64] = {}, copy[64] = {};
    const auto rotate = [&](ComputeStream& on) {
      return device.Rotate(RopeRotation(RopeParams(), 0, 0), {row, 1, 64}, 64, {copy}, on);
    };
    device.Fail(failure);
    EXPECT_EQ(rotate(*stream).ok(), failure == DeferredBackend::Failure::kAtWait);
    EXPECT_EQ(stream->Wait().code(), absl::StatusCode::kInternal);
    EXPECT_EQ(rotate(*stream).code(), absl::StatusCode::kInternal);
    EXPECT_TRUE(rotate(*other).ok() && other->Wait().ok());
  }
}

}  // namespace
}  // namespace ckv::test
