// Goal: the frames of any call fit their slots, decode at the other end, and together name every
// (chunk, row) once, with each query's selection in its order.
// Method: random calls and shapes; frames are decoded by the holder's own decoder.

#include "client/call/attend_plan.h"

#include <map>
#include <random>

#include "client/call/lane_wait.h"
#include "gtest/gtest.h"
#include "tests/support/test_corpus.h"

namespace ckv {
namespace {

struct RandomCall {
  explicit RandomCall(uint32_t seed) : rng(seed) {
    auto made = std::make_shared<Corpus>();
    made->geometry = test::TestGeometry();
    made->chunks.resize(1 + rng() % 40);
    for (ChunkPlacement& chunk : made->chunks) {
      chunk.token_count = rng() % 4 == 0 ? 0 : 1 + rng() % 50;
      token_count += chunk.token_count;
      chunk.holders = {HolderId{"h"}};
    }
    const uint32_t rows = 1 + rng() % 300;
    q = test::RandomBf16(size_t{rows} * 96, rng);
    for (uint32_t i = 0; i < made->chunks.size(); ++i)
      uses.push_back({i, rng() % 2 ? 0 : int64_t(rng() % 20)});
    std::shuffle(uses.begin(), uses.end(), rng);
    call.corpus = made;
    call.chunks = uses;
    call.layer = 2;
    call.q = {q.data(), rows, 96};
    call.per_chunk = rng() % 2;
    call.wire = rng() % 2 ? PartialDtype::kF32 : PartialDtype::kBf16;
    if (rng() % 2) {
      const uint32_t group_rows = 1 + rng() % 40, k = rng() % 60;
      indices.resize(size_t{(rows + group_rows - 1) / group_rows} * k + 1);
      for (int32_t& index : indices) index = int32_t(rng() % (token_count + 1)) - 1;
      call.selection = {indices.data(), k, group_rows};
    }
    shape = {.slot_count = 4,
             .request_bytes_max = 2048 + uint32_t(rng() % 30000),
             .reply_bytes_max = 1024 + uint32_t(rng() % 30000)};
  }
  std::mt19937 rng;
  uint64_t token_count = 0;
  std::vector<uint16_t> q;
  std::vector<ChunkUse> uses;
  std::vector<int32_t> indices;
  AttendCall call;
  LaneShape shape;
};

// What query row `row` attends of each piece, by the call itself.
std::vector<int32_t> Wanted(const AttendCall& call, const PlannedPiece& piece, uint32_t row) {
  std::vector<int32_t> wanted;
  const Selection& selection = call.selection;
  for (uint32_t i = 0; i < selection.k; ++i) {
    const int64_t index = selection.indices[size_t{row / selection.group_rows} * selection.k + i];
    if (index >= int64_t(piece.base) && index < int64_t(piece.base + piece.token_count))
      wanted.push_back(int32_t(index - int64_t(piece.base)));
  }
  return wanted;
}

void CheckFrame(const RandomCall& random, const AttendPlan& plan, const PlannedBlock& block,
                RequestHeader header, std::span<std::byte> slot, std::span<const uint32_t> sent) {
  const AttendCall& call = random.call;
  EncodeHeader(header, slot);
  const size_t bytes = sizeof(header) + header.body_bytes;
  ASSERT_LE(bytes, random.shape.request_bytes_max);
  const auto decoded = DecodeRequestHeader(slot.first(bytes));
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  AttendRequest request;
  const absl::Status status =
      DecodeAttendRequest(*decoded, slot.first(bytes), call.corpus->geometry, request);
  ASSERT_TRUE(status.ok()) << status;
  const size_t partials = call.per_chunk ? sent.size() : 1;
  ASSERT_LE(sizeof(ReplyHeader) +
                partials *
                    LayOutPartial(block.row_count, 64, call.wire == PartialDtype::kF32).total_bytes,
            random.shape.reply_bytes_max);
  ASSERT_EQ(request.pieces.size(), sent.size());
  for (size_t i = 0; i < sent.size(); ++i) {
    const PieceEntry& entry = request.pieces[i];
    const PlannedPiece& piece = plan.pieces()[sent[i]];
    ASSERT_EQ(entry.handle, piece.handle);
    if (piece.offset == 0) {
      ASSERT_EQ(std::memcmp(request.rows + size_t{entry.copy} * block.row_count * 96,
                            random.q.data() + size_t{block.row_begin} * 96,
                            size_t{block.row_count} * 192),
                0);
    }
    if (!call.selection.present()) {
      ASSERT_EQ(entry.index_begin, kDense);
      continue;
    }
    for (uint32_t row = 0; row < block.row_count; ++row) {
      std::vector<int32_t> got;
      for (uint32_t n = 0; n < entry.k; ++n) {
        const int32_t index =
            request.indices[entry.index_begin + size_t{row / entry.group_rows} * entry.k + n];
        if (index >= 0) got.push_back(index);
      }
      ASSERT_EQ(got, Wanted(call, piece, block.row_begin + row)) << "row " << row;
    }
  }
}

TEST(AttendPlan, FramesFitDecodeAndCover) {
  for (uint32_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    RandomCall random(seed);
    AttendPlan plan;
    const absl::Status begun = plan.Begin(random.call);
    ASSERT_TRUE(begun.ok()) << begun;
    const uint32_t holders = 1 + random.rng() % 4;
    for (PlannedPiece& piece : plan.pieces()) {
      if (piece.token_count == 0) continue;
      piece.group = random.rng() % holders;
      piece.handle = piece.chunk + 1;
    }
    const absl::Status cut = plan.Cut(random.call, random.shape, holders);
    ASSERT_TRUE(cut.ok()) << cut;
    std::vector<std::byte> slot(random.shape.request_bytes_max + 64);
    const auto aligned = std::span<std::byte>(slot).subspan(
        (64 - reinterpret_cast<uintptr_t>(slot.data()) % 64) % 64, random.shape.request_bytes_max);
    std::map<uint32_t, uint32_t> rows_of_piece;
    uint32_t next_row = 0;
    for (const PlannedBlock& block : plan.blocks()) {
      ASSERT_EQ(block.row_begin, next_row);
      ASSERT_GT(block.row_count, 0u);
      next_row += block.row_count;
      for (const PlannedBatch& batch : plan.batches()) {
        std::vector<uint32_t> sent, empty;
        const RequestHeader header =
            plan.WriteFrame(random.call, block, batch, aligned, &sent, &empty);
        ASSERT_EQ(header.piece_count, sent.size());
        for (const uint32_t piece : sent) rows_of_piece[piece] += block.row_count;
        for (const uint32_t piece : empty) {
          rows_of_piece[piece] += block.row_count;
          for (uint32_t row = 0; row < block.row_count; ++row) {
            ASSERT_TRUE(Wanted(random.call, plan.pieces()[piece], block.row_begin + row).empty());
          }
        }
        if (header.piece_count > 0) CheckFrame(random, plan, block, header, aligned, sent);
        if (HasFatalFailure()) return;
      }
    }
    ASSERT_EQ(next_row, random.call.q.count);
    for (uint32_t i = 0; i < plan.pieces().size(); ++i) {
      ASSERT_EQ(rows_of_piece[i], plan.pieces()[i].token_count == 0 ? 0 : random.call.q.count);
    }
  }
}

// Goal: an index that is neither a row nor -1 is a mistake of the caller's, whatever is near it.
TEST(AttendPlan, AnIndexOutsideTheChunksIsRefused) {
  for (uint32_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    RandomCall random(seed);
    if (!random.call.selection.present() || random.indices.size() == 1) continue;
    AttendPlan plan;
    int32_t& index = random.indices[random.rng() % (random.indices.size() - 1)];
    for (const int64_t wrong :
         {int64_t(random.token_count), int64_t{-2}, int64_t{INT32_MIN}, int64_t{INT32_MAX}}) {
      index = int32_t(wrong);
      const absl::Status refused = plan.Begin(random.call);
      EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
      EXPECT_NE(refused.message().find(std::to_string(index)), std::string::npos) << refused;
    }
    index = -1;
    EXPECT_TRUE(plan.Begin(random.call).ok());
  }
}

TEST(AttendPlan, OffsetsShareCopies) {
  RandomCall random(1);
  random.call.selection = {};
  for (ChunkUse& use : random.uses) use.offset = use.ordinal % 2 ? 100 : 0;
  random.shape = {};
  AttendPlan plan;
  ASSERT_TRUE(plan.Begin(random.call).ok());
  for (PlannedPiece& piece : plan.pieces()) piece.group = piece.token_count == 0 ? piece.group : 0;
  ASSERT_TRUE(plan.Cut(random.call, random.shape, 1).ok());
  ASSERT_FALSE(plan.batches().empty());
  for (const PlannedBatch& batch : plan.batches()) EXPECT_LE(batch.copy_end - batch.copy_begin, 2u);
}

TEST(LaneWait, EndsAtTheDeadline) {
  ManualClock clock;
  LaneWait wait(&clock, std::chrono::microseconds(50));
  wait.Begin(2);
  const Instant deadline = clock.Now() + std::chrono::milliseconds(1);
  EXPECT_TRUE(wait.Pause({}, deadline).ok());  // spins
  clock.Advance(std::chrono::microseconds(60));
  EXPECT_TRUE(wait.Pause({}, deadline).ok());  // sleeps, but not for ever
  clock.Advance(std::chrono::milliseconds(1));
  EXPECT_EQ(wait.Pause({}, deadline).code(), absl::StatusCode::kDeadlineExceeded);
}

}  // namespace
}  // namespace ckv
