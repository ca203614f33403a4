// Goal: memory that others allocated is reached as pinned memory from Pin to Unpin, and is the same
// host memory before, meanwhile and afterwards. Method: the conformance suite's backends, over
// pages that the test maps; results are compared with the functions in the headers of attention/.

#include <sys/mman.h>

#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "attention/worker_pool.h"
#include "gtest/gtest.h"
#include "tests/attention/backend_cases.h"
#include "tests/attention/random_piece.h"
#include "tests/attention/reference.h"

namespace ckv::test {
namespace {

// Whole pages of the process, as a fabric or a store maps them.
class Pages {
 public:
  explicit Pages(size_t bytes) : bytes_((bytes + 4095) / 4096 * 4096) {
    base_ = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CKV_CHECK(base_ != MAP_FAILED);
  }
  ~Pages() { munmap(base_, bytes_); }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;

  template <typename T = std::byte>
  T* at(size_t offset = 0) const {
    return reinterpret_cast<T*>(static_cast<std::byte*>(base_) + offset);
  }
  std::span<std::byte> all() const { return {at(), bytes_}; }
  void Write(const void* from, size_t bytes) const {
    CKV_CHECK(bytes <= bytes_);
    std::memcpy(base_, from, bytes);
  }

 private:
  const size_t bytes_;
  void* base_;
};

class BackendPin : public BackendTest {
 protected:
  // Copies by the backend, from pinned memory to pinned memory.
  absl::Status Copy(const Pages& from, const Pages& to, uint32_t row_count) {
    const RowView rows = {from.at(), row_count, 64, MemoryKind::kPinned};
    CKV_RETURN_IF_ERROR(backend_.Rotate(RopeRotation(RopeParams(), 0, 0), rows, 64,
                                        {to.at(), MemoryKind::kPinned}, *stream_));
    return stream_->Wait();
  }
};

// More than a page. Twice: memory that was unpinned can be pinned again.
TEST_P(BackendPin, IsReachedFromPinToUnpin) {
  constexpr uint32_t kRows = 190;
  const Pages from(kRows * 64), to(kRows * 64);
  std::vector<std::byte> bytes(kRows * 64);
  for (int round = 0; round < 2; ++round) {
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(rng_());
    from.Write(bytes.data(), bytes.size());
    std::memset(to.at(), 0, bytes.size());
    ASSERT_TRUE(backend_.Pin(from.all()).ok());
    ASSERT_TRUE(backend_.Pin(to.all()).ok());
    ASSERT_TRUE(Copy(from, to, kRows).ok());
    EXPECT_EQ(std::memcmp(to.at(), bytes.data(), bytes.size()), 0);
    // Written by this processor meanwhile: both see one memory.
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(rng_());
    from.Write(bytes.data(), bytes.size());
    ASSERT_TRUE(Copy(from, to, kRows).ok());
    backend_.Unpin(from.all());
    backend_.Unpin(to.all());
    EXPECT_EQ(std::memcmp(from.at(), bytes.data(), bytes.size()), 0);
    EXPECT_EQ(std::memcmp(to.at(), bytes.data(), bytes.size()), 0);
  }
}

// ckv fills this memory itself, as slots and copies of replies.
TEST_P(BackendPin, HasMemoryOfTheKindsThatCallersFill) {
  const MemoryKind filled =
      backend_.reach().Everywhere(MemoryKind::kHost) ? MemoryKind::kHost : MemoryKind::kPinned;
  for (const MemoryKind kind : {backend_.home(), filled}) {
    const auto memory = backend_.Allocate(kind, 100);
    ASSERT_TRUE(memory.ok()) << MemoryKindName(kind) << memory.status();
    EXPECT_EQ(memory->kind(), kind);
    EXPECT_GE(memory->size(), 100u);
  }
}

// Like a holder: rows of its store, queries and answers in slots.
TEST_P(BackendPin, AttendsPinnedMemory) {
  if (!reach_.queries.Has(MemoryKind::kPinned) || !reach_.rows.Has(MemoryKind::kPinned) ||
      !reach_.partials.Has(MemoryKind::kPinned)) {
    return;
  }
  PieceOptions options;
  options.q_count = 7;
  options.row_count = 100;
  TestPiece piece(options, &rng_);
  const AttentionShape& shape = piece.shape();
  const AttentionPiece& given = piece.piece();
  const Pages queries(size_t{7} * given.q.stride * 2), rows(size_t{100} * given.rows.stride_bytes);
  const size_t o_bytes = size_t{7} * shape.d_v * ValueBytes(given.out.dtype);
  const Pages out(o_bytes + 2 * 7 * sizeof(float));
  queries.Write(given.q.data, (size_t{6} * given.q.stride + shape.d_qk) * 2);
  rows.Write(given.rows.data, size_t{99} * given.rows.stride_bytes + RowBytesOf(shape));
  for (const Pages* pages : {&queries, &rows, &out}) ASSERT_TRUE(backend_.Pin(pages->all()).ok());
  AttentionPiece placed = given;
  placed.q = {queries.at<uint16_t>(), 7, given.q.stride, MemoryKind::kPinned};
  placed.rows = {rows.at(), 100, given.rows.stride_bytes, MemoryKind::kPinned};
  placed.out = {out.at(), out.at<float>(o_bytes), out.at<float>(o_bytes) + 7, given.out.dtype,
                MemoryKind::kPinned};
  ASSERT_TRUE(backend_.AttendPartials(shape, {&placed, 1}, *stream_).ok());
  ASSERT_TRUE(stream_->Wait().ok());
  for (const Pages* pages : {&queries, &rows, &out}) backend_.Unpin(pages->all());
  std::memcpy(given.out.o, out.at(), o_bytes);
  std::memcpy(given.out.m, placed.out.m, 7 * sizeof(float));
  std::memcpy(given.out.l, placed.out.l, 7 * sizeof(float));
  const auto want = reference::Attend(shape, given);
  for (uint32_t i = 0; i < 7; ++i) EXPECT_NEAR(piece.l(i) / want[i].l, 1, 1e-3) << "row " << i;
  if (!under_->has_cpu_bits()) return;
  std::vector<std::vector<std::byte>> bits;
  for (uint32_t i = 0; i < 7; ++i) bits.push_back(piece.RowBits(i));
  piece.ResetOutput();
  WorkerPool pool(1);
  AttendPartials(shape, {&piece.piece(), 1}, pool);
  for (uint32_t i = 0; i < 7; ++i) EXPECT_EQ(piece.RowBits(i), bits[i]) << "row " << i;
}

TEST_P(BackendPin, ThreadsPinAtATime) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([this] {
      const Pages pages(3 * 4096);
      for (int i = 0; i < 50; ++i) {
        ASSERT_TRUE(backend_.Pin(pages.all()).ok());
        backend_.Unpin(pages.all());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

INSTANTIATE_TEST_SUITE_P(All, BackendPin, AllBackends(), CaseName);

// The accounting of the backend that holders are tested with.
TEST(DeferredBackendPinDeathTest, PinsWholePagesThatAreNotPinnedElsewhere) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  DeferredBackend device(DeferredBackend::ReachPinned());
  const Pages pages(3 * 4096);
  ASSERT_TRUE(device.Pin(pages.all().first(2 * 4096)).ok());
  EXPECT_DEATH((void)device.Pin(pages.all()), "CKV_CHECK");
  EXPECT_DEATH((void)device.Pin(pages.all().subspan(4096, 4096)), "CKV_CHECK");
  EXPECT_DEATH((void)device.Pin(pages.all().subspan(2 * 4096, 64)), "CKV_CHECK");
  ASSERT_TRUE(device.Pin(pages.all().subspan(2 * 4096)).ok());
  EXPECT_EQ(device.pin_count(), 2u);
  EXPECT_EQ(device.pinned_bytes(), 3u * 4096);
  device.Unpin(pages.all().first(2 * 4096));
  device.Unpin(pages.all().subspan(2 * 4096));
  EXPECT_EQ(device.pin_count(), 0u);
}

TEST(DeferredBackendPinDeathTest, AViewOfMemoryThatIsNotPinnedEndsTheProcess) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  DeferredBackend device(DeferredBackend::ReachPinned());
  const auto stream = *device.NewStream(1);
  const Pages from(4096), to(2 * 4096);
  const auto copy = [&](uint32_t rows) {
    return device.Rotate(RopeRotation(RopeParams(), 0, 0),
                         {from.at(), rows, 64, MemoryKind::kPinned}, 64,
                         {to.at(), MemoryKind::kPinned}, *stream);
  };
  ASSERT_TRUE(device.Pin(to.all()).ok());
  EXPECT_DEATH((void)copy(1), "CKV_CHECK");
  ASSERT_TRUE(device.Pin(from.all()).ok());
  EXPECT_TRUE(copy(64).ok());
  EXPECT_DEATH((void)copy(65), "CKV_CHECK");  // the last row is outside
  ASSERT_TRUE(stream->Wait().ok());
  EXPECT_DEATH(device.Unpin(from.all().first(64)), "CKV_CHECK");
  device.Unpin(from.all());
  EXPECT_DEATH((void)copy(1), "CKV_CHECK");
  device.Unpin(to.all());
}

}  // namespace
}  // namespace ckv::test
