// Goal: the frames of any call fit their slots, decode at the other end, and together name every
// (chunk, row) once, in the order of the tree, with each query's selection in its order. A query
// with a row limit has the rows before it, and no other. Method: random calls, placements and
// shapes; frames are decoded by the holder's own decoder.

#include "client/plan/attend_plan.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "attention/merge.h"
#include "client/plan/attend_frames.h"
#include "client/plan/attend_nodes.h"
#include "client/plan/attend_units.h"
#include "client/plan/frame_writer.h"
#include "gtest/gtest.h"
#include "tests/support/cpu_stream.h"
#include "tests/support/sanitized.h"
#include "tests/support/test_corpus.h"

namespace ckv {
namespace {

constexpr uint32_t kPlanValues = 96;  // d_qk of the test geometry

struct RandomCall {
  explicit RandomCall(uint32_t seed) : rng(seed) {
    const uint32_t segment_count = 1 + rng() % 4;
    uint32_t rows = 0;
    for (uint32_t i = 0; i < segment_count; ++i) {
      contexts.push_back(i > 0 && rng() % 2 ? contexts.back() : RandomContext());
      RouteSegment segment = {.row_begin = rows,
                              .row_count = 1 + uint32_t(rng() % 150),
                              .context = contexts.back().get()};
      rows += segment.row_count;
      if (rng() % 2) {
        Select(segment);
      } else if (rng() % 2) {
        Limit(segment);
      }
      segments.push_back(segment);
    }
    q = test::RandomBf16(size_t{rows} * kPlanValues, rng);
    call.layer = 2;
    call.q = {q.data(), rows, kPlanValues};
    call.segments = segments;
    call.wire = rng() % 2 ? PartialDtype::kF32 : PartialDtype::kBf16;
    const uint32_t peer_count = 1 + rng() % 4;
    for (uint32_t i = 0; i < peer_count; ++i) {
      PlannedPeer peer;
      peer.shape = {.slot_count = 4,
                    .request_bytes_max = 2048 + uint32_t(rng() % 60000),
                    .reply_bytes_max = 1024 + uint32_t(rng() % 60000)};
      peers.push_back(peer);
    }
  }

  std::shared_ptr<ContextState> RandomContext() {
    auto corpus = std::make_shared<Corpus>();
    corpus->name = "laws";
    corpus->geometry = test::TestGeometry();
    corpus->chunks.resize(1 + rng() % 40);
    std::vector<ChunkUse> uses;
    for (uint32_t i = 0; i < corpus->chunks.size(); ++i) {
      corpus->chunks[i].token_count = rng() % 4 == 0 ? 0 : 1 + rng() % 50;
      corpus->chunks[i].set_holders({HolderId{"h"}});
      if (rng() % 4 != 0) uses.push_back({i, rng() % 2 ? 0 : int64_t(rng() % 20)});
    }
    std::shuffle(uses.begin(), uses.end(), rng);
    const ContextPart part = {corpus, uses};
    return *ContextState::Make({&part, 1});
  }
  void Select(RouteSegment& segment) {
    const uint32_t group_rows = 1 + rng() % 40, k = rng() % 60;
    const auto tokens = uint32_t(segment.context->token_count());
    indices.push_back(std::make_unique<std::vector<int32_t>>(
        size_t{(segment.row_count + group_rows - 1) / group_rows} * k + 1));
    for (int32_t& index : *indices.back()) index = int32_t(rng() % (tokens + 1)) - 1;
    segment.selection = {indices.back()->data(), k, group_rows};
  }
  // Often the same as before, and often where a chunk begins.
  void Limit(RouteSegment& segment) {
    const ContextState& context = *segment.context;
    const uint32_t group_rows = 1 + rng() % 40;
    const auto tokens = uint32_t(context.token_count());
    auto& list = limits.emplace_back(std::make_unique<std::vector<uint32_t>>());
    for (uint32_t row = 0; row < segment.row_count; row += group_rows) {
      if (list->empty() || rng() % 3 > 0) {
        const bool at_chunk = !context.chunks().empty() && rng() % 4 == 0;
        list->push_back(at_chunk ? uint32_t(context.first_row(rng() % context.chunks().size()))
                                 : uint32_t(rng() % (tokens + 1)));
      } else {
        list->push_back(list->back());
      }
    }
    segment.row_limits = {list->data(), group_rows};
  }

  std::mt19937 rng;
  std::vector<std::shared_ptr<ContextState>> contexts;
  std::vector<std::unique_ptr<std::vector<uint32_t>>> limits;
  std::vector<std::unique_ptr<std::vector<int32_t>>> indices;
  std::vector<RouteSegment> segments;
  std::vector<uint16_t> q;
  RouteCall call;
  std::vector<PlannedPeer> peers;
};

using RowsOfChunk = std::map<std::pair<uint32_t, uint32_t>, std::vector<uint32_t>>;

// Returns the rows of a chunk that query row `row` selects, or sees. Reads the call, not the plan.
std::vector<int32_t> Wanted(const RouteSegment& segment, uint32_t chunk, uint32_t row) {
  std::vector<int32_t> wanted;
  if (!segment.selection.present()) {
    const RowLimits& limits = segment.row_limits;
    const uint64_t limit =
        limits.present() ? limits.limits[row / limits.group_rows] : segment.context->token_count();
    const uint64_t first = segment.context->first_row(chunk);
    for (uint32_t i = 0; i < segment.context->chunks()[chunk].token_count; ++i) {
      if (first + i < limit) wanted.push_back(int32_t(i));
    }
    return wanted;
  }
  const Selection& selection = segment.selection;
  for (uint32_t i = 0; i < selection.k; ++i) {
    const int32_t index = selection.indices[size_t{row / selection.group_rows} * selection.k + i];
    if (index < 0) continue;
    const ContextState::RowPlace place = segment.context->Find(uint32_t(index));
    if (place.chunk == chunk) wanted.push_back(int32_t(place.row));
  }
  return wanted;
}

class PlanChecker {
 public:
  PlanChecker(const RandomCall& random, const AttendPlan& plan) : random_(random), plan_(plan) {}

  void Check() {
    for (const PlannedFrame& frame : plan_.frames()) {
      CheckFrame(frame);
      if (testing::Test::HasFatalFailure()) return;
    }
    CheckRows();
  }

 private:
  void CheckFrame(const PlannedFrame& frame) {
    const PlannedPeer& peer = random_.peers[frame.peer_index];
    std::vector<std::byte> memory(peer.shape.request_bytes_max + 64);
    const auto slot = std::span<std::byte>(memory).subspan(
        (64 - reinterpret_cast<uintptr_t>(memory.data()) % 64) % 64, peer.shape.request_bytes_max);
    const auto written =
        WriteFrame(random_.call, plan_, frame, slot, MemoryKind::kHost, test::CpuStream());
    ASSERT_TRUE(written.ok()) << written.status();
    const RequestHeader& header = *written;
    EncodeHeader(header, slot);
    const size_t bytes = sizeof(header) + header.body_bytes;
    ASSERT_LE(bytes, peer.shape.request_bytes_max);
    const auto decoded = DecodeRequestHeader(slot.first(bytes));
    ASSERT_TRUE(decoded.ok()) << decoded.status();
    AttendRequest request;
    const absl::Status status =
        DecodeAttendRequest(*decoded, slot.first(bytes), random_.call.geometry(), request);
    ASSERT_TRUE(status.ok()) << status;
    ASSERT_EQ(AttendReplyBytes(request, random_.call.geometry()), frame.reply_bytes);
    ASSERT_LE(sizeof(ReplyHeader) + frame.reply_bytes, peer.shape.reply_bytes_max);
    ASSERT_EQ(request.partial_count, frame.partial_count);
    ASSERT_EQ(request.segments.size(), plan_.PartsOf(frame).size());
    for (size_t i = 0; i < request.segments.size(); ++i) {
      CheckPart(request, request.segments[i], plan_.PartsOf(frame)[i]);
      if (testing::Test::HasFatalFailure()) return;
    }
  }

  void CheckPart(const AttendRequest& request, const AttendSegment& requested,
                 const PlannedPart& part) {
    const PlannedSplit& split = plan_.splits()[part.split];
    const uint32_t segment_ordinal = plan_.units()[split.unit].segment;
    const RouteSegment& segment = random_.segments[segment_ordinal];
    ASSERT_EQ(requested.row_count, part.row_count);
    for (uint32_t i = requested.piece_begin; i < requested.piece_end; ++i) {
      const PieceEntry& entry = request.pieces[i];
      const uint32_t chunk = entry.handle - 1;  // as Place set it
      const ContextChunk& known = segment.context->chunks()[chunk];
      ASSERT_EQ(entry.ordinal, known.ordinal);
      if (segment.context->rotations()[known.rotation].is_identity()) {
        const uint64_t row =
            requested.stored_row_begin + uint64_t{entry.copy} * requested.row_count;
        ASSERT_EQ(std::memcmp(request.rows + row * kPlanValues,
                              random_.q.data() + size_t{part.row_begin} * kPlanValues,
                              size_t{part.row_count} * kPlanValues * 2),
                  0);
      }
      for (uint32_t row = 0; row < part.row_count; ++row) {
        rows_of_chunk_[{segment_ordinal, chunk}].push_back(part.row_begin + row);
        // A chunk that a limit does not cut is attended without indices.
        const std::vector<int32_t> wanted =
            Wanted(segment, chunk, part.row_begin + row - segment.row_begin);
        if (!segment.selection.present() && wanted.size() == known.token_count) {
          ASSERT_EQ(entry.index_begin, kDense);
          continue;
        }
        ASSERT_NE(entry.index_begin, kDense);
        const auto list = request.indices.subspan(
            entry.index_begin + size_t{row / entry.group_rows} * entry.k, entry.k);
        ASSERT_EQ(std::vector<int32_t>(list.begin(), list.end()), wanted) << "row " << row;
      }
    }
  }

  // Every row attends once every chunk of which it selects or sees a row.
  void CheckRows() {
    for (uint32_t s = 0; s < random_.segments.size(); ++s) {
      const RouteSegment& segment = random_.segments[s];
      for (uint32_t chunk = 0; chunk < segment.context->chunks().size(); ++chunk) {
        std::vector<uint32_t> rows = rows_of_chunk_[{s, chunk}];
        std::sort(rows.begin(), rows.end());
        std::vector<uint32_t> wanted;
        for (uint32_t row = 0; row < segment.row_count; ++row) {
          if (!Wanted(segment, chunk, row).empty()) wanted.push_back(segment.row_begin + row);
        }
        ASSERT_EQ(rows, wanted) << "segment " << s << " chunk " << chunk;
      }
    }
  }

  const RandomCall& random_;
  const AttendPlan& plan_;
  RowsOfChunk rows_of_chunk_;
};

// Puts each chunk on a random peer: the same one for every unit of a context.
void Place(RandomCall& random, AttendPlan& plan) {
  std::map<std::pair<const ContextState*, uint32_t>, uint32_t> peer_of;
  for (const PlannedUnit& unit : plan.units()) {
    const ContextState* context = random.segments[unit.segment].context;
    for (uint32_t i = unit.attended_begin; i < unit.attended_end; ++i) {
      AttendedChunk& chunk = plan.attended()[i];
      const auto [peer, is_new] = peer_of.try_emplace({context, chunk.context_index}, 0);
      if (is_new) peer->second = uint32_t(random.rng() % random.peers.size());
      chunk.peer_index = peer->second;
      chunk.handle = chunk.context_index + 1;
    }
  }
}

TEST(AttendPlan, FramesFitDecodeAndCover) {
  for (uint32_t seed = 0; seed < 400; seed += kSanitized ? 8 : 1) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    RandomCall random(seed);
    ASSERT_TRUE(CheckRouteCall(random.call, *Backend::Cpu()).ok());
    AttendPlan plan;
    for (int again = 0; again < 2; ++again) {  // nothing is left of the call before
      const absl::Status begun = plan.Begin(random.call);
      ASSERT_TRUE(begun.ok()) << begun;
      Place(random, plan);
      const absl::Status cut = plan.Cut(random.call, random.peers);
      ASSERT_TRUE(cut.ok()) << cut;
      PlanChecker(random, plan).Check();
      if (HasFatalFailure()) return;
    }
  }
}

// Goal: nodes are the largest aligned subtrees that one peer has whole, in the order of the tree.
TEST(AttendPlan, NodesAreTheLargestSubtrees) {
  for (uint32_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    RandomCall random(seed);
    for (PlannedPeer& peer : random.peers) peer = PlannedPeer{};
    AttendPlan plan;
    ASSERT_TRUE(plan.Begin(random.call).ok());
    Place(random, plan);
    ASSERT_TRUE(plan.Cut(random.call, random.peers).ok());
    for (const PlannedUnit& unit : plan.units()) {
      const std::span<const ContextChunk> chunks = random.segments[unit.segment].context->chunks();
      const auto ordinal = [&](uint32_t chunk) {
        return chunks[plan.attended()[chunk].context_index].ordinal;
      };
      uint32_t next = unit.attended_begin;
      for (uint32_t n = unit.node_begin; n < unit.node_end; ++n) {
        const PlannedNode& node = plan.nodes()[n];
        ASSERT_EQ(node.attended_begin, next);
        next = node.attended_end;
        const uint32_t peer_index = plan.attended()[node.attended_begin].peer_index;
        const uint32_t inside =
            node.attended_end - node.attended_begin == 1
                ? 0
                : TreeLevel(ordinal(node.attended_begin), ordinal(node.attended_end - 1));
        for (uint32_t i = node.attended_begin; i < node.attended_end; ++i)
          ASSERT_EQ(plan.attended()[i].peer_index, peer_index);
        // The next larger subtree has a chunk of another peer, or is the whole tree.
        bool larger_is_whole = true, larger_has_more = false;
        for (uint32_t level = inside + 1; level <= 8 && !larger_has_more; ++level) {
          for (uint32_t i = unit.attended_begin; i < unit.attended_end; ++i) {
            if (ordinal(i) >> level != ordinal(node.attended_begin) >> level) continue;
            larger_has_more |= i < node.attended_begin || i >= node.attended_end;
            larger_is_whole &= plan.attended()[i].peer_index == peer_index;
          }
        }
        const uint32_t copies = plan.splits()[node.split].copy_count;
        ASSERT_FALSE(larger_has_more && copies < kCopyCountMax && larger_is_whole);
        if (n == unit.node_begin) continue;
        ASSERT_EQ(node.level, TreeLevel(ordinal(plan.nodes()[n - 1].attended_begin),
                                        ordinal(node.attended_begin)));
      }
      ASSERT_EQ(next, unit.attended_end);
    }
  }
}

// Goal: an index that is neither a row nor -1 is a mistake of the caller's, whatever is near it.
TEST(AttendPlan, AnIndexOutsideTheChunksIsRefused) {
  for (uint32_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    RandomCall random(seed);
    const RouteSegment& segment = random.segments.back();
    if (!segment.selection.present() || random.indices.back()->size() == 1) continue;
    AttendPlan plan;
    int32_t& index = (*random.indices.back())[random.rng() % (random.indices.back()->size() - 1)];
    for (const int64_t wrong : {int64_t(segment.context->token_count()), int64_t{-2},
                                int64_t{INT32_MIN}, int64_t{INT32_MAX}}) {
      index = int32_t(wrong);
      const absl::Status refused = plan.Begin(random.call);
      EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
      EXPECT_NE(refused.message().find(std::to_string(index)), std::string::npos) << refused;
    }
    index = -1;
    EXPECT_TRUE(plan.Begin(random.call).ok());
  }
}

// Goal: a limit beyond the chunks is a mistake of the caller's, and so are limits and a selection.
TEST(AttendPlan, ALimitBeyondTheChunksIsRefused) {
  RandomCall random(5);
  random.segments.resize(1);
  RouteSegment& segment = random.segments[0];
  random.call.segments = random.segments;
  segment.selection = {};
  segment.row_limits = {};
  random.call.q.count = segment.row_count;
  std::vector<uint32_t> limits(segment.row_count, uint32_t(segment.context->token_count()));
  segment.row_limits = {limits.data(), 1};
  AttendPlan plan;
  ASSERT_TRUE(CheckRouteCall(random.call, *Backend::Cpu()).ok());
  EXPECT_TRUE(plan.Begin(random.call).ok());
  EXPECT_EQ(plan.units().size(), 1u);  // one limit, one unit
  ++limits.back();
  const absl::Status refused = plan.Begin(random.call);
  EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
  EXPECT_NE(refused.message().find(std::to_string(limits.back())), std::string::npos) << refused;
  segment.row_limits.group_rows = 0;
  EXPECT_TRUE(absl::IsInvalidArgument(CheckRouteCall(random.call, *Backend::Cpu())));
  const int32_t none = -1;
  segment.row_limits.group_rows = segment.row_count;
  segment.selection = {&none, 1, segment.row_count};
  EXPECT_TRUE(absl::IsInvalidArgument(CheckRouteCall(random.call, *Backend::Cpu())));
}

// A call of `sequences` contexts of one chunk each, of `heads` rows, spread over four holders.
AttendPlan PlanBatch(uint32_t sequences, uint32_t heads) {
  auto corpus = std::make_shared<Corpus>();
  corpus->name = "laws";
  corpus->geometry = test::TestGeometry();
  corpus->geometry.d_qk = 576;
  corpus->geometry.d_v = 512;
  corpus->geometry.d_rope = 64;
  corpus->chunks.resize(sequences);
  for (ChunkPlacement& chunk : corpus->chunks) chunk.token_count = 256;
  std::vector<std::shared_ptr<ContextState>> contexts;
  std::vector<RouteSegment> segments;
  for (uint32_t i = 0; i < sequences; ++i) {
    const ChunkUse use = {i, 0};
    const ContextPart part = {corpus, {&use, 1}};
    contexts.push_back(*ContextState::Make({&part, 1}));
    segments.push_back(
        {.row_begin = i * heads, .row_count = heads, .context = contexts.back().get()});
  }
  const std::vector<uint16_t> q(size_t{sequences} * heads * 576);
  RouteCall call;
  call.q = {q.data(), sequences * heads, 576};
  call.segments = segments;
  call.wire = PartialDtype::kF32;
  std::vector<PlannedPeer> peers(4);
  AttendPlan plan;
  EXPECT_TRUE(plan.Begin(call).ok());
  for (AttendedChunk& chunk : plan.attended()) {
    const auto ordinal = static_cast<uint32_t>(&chunk - plan.attended().data());
    chunk.peer_index = ordinal % 4;
  }
  EXPECT_TRUE(plan.Cut(call, peers).ok());
  return plan;
}

TEST(AttendPlan, ABatchIsCutByBytesAlone) {
  // 16 sequences of 16 rows fit one slot.
  EXPECT_EQ(PlanBatch(64, 16).frames().size(), 4u);
  // 16 sequences of 128 rows are 2,048 rows of 1,152 bytes for each holder: eight slots of 320 KiB.
  EXPECT_EQ(PlanBatch(64, 128).frames().size(), 4u * 8);
  // Not by sequences: 96 rows each still fill whole slots of 256.
  EXPECT_EQ(PlanBatch(64, 96).frames().size(), 4u * 6);
}

TEST(AttendPlan, OffsetsShareCopies) {
  auto corpus = std::make_shared<Corpus>();
  corpus->name = "laws";
  corpus->geometry = test::TestGeometry();
  corpus->chunks.resize(30);
  std::vector<ChunkUse> uses;
  for (uint32_t i = 0; i < 30; ++i) {
    corpus->chunks[i].token_count = 5;
    uses.push_back({i, i % 2 ? 100 : 0});
  }
  const ContextPart part = {corpus, uses};
  const auto context = *ContextState::Make({&part, 1});
  const RouteSegment segment = {.row_count = 16, .context = context.get()};
  const std::vector<uint16_t> q(16 * kPlanValues);
  const RouteCall call = {.q = {q.data(), 16, kPlanValues}, .segments = {&segment, 1}};
  std::vector<PlannedPeer> peers(1);
  AttendPlan plan;
  ASSERT_TRUE(plan.Begin(call).ok());
  ASSERT_TRUE(plan.Cut(call, peers).ok());
  ASSERT_EQ(plan.splits().size(), 1u);
  EXPECT_EQ(plan.splits()[0].copy_count, 2u);
  EXPECT_EQ(plan.splits()[0].node_count, 1u);
}

}  // namespace
}  // namespace ckv
