// Real holders in this process, an attender over a cache of tests, and what its tokens are due: the
// requester's partial and the kernel's, merged by hand.

#pragma once

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "attention/merge.h"
#include "client/bindings/ggml/op_attender.h"
#include "client/requester.h"
#include "gtest/gtest.h"
#include "tests/client/bindings/ggml/engine_cache.h"
#include "tests/support/test_fleet.h"

namespace ckv::test {

using ggml::Attached;
using ggml::CorpusContexts;
using ggml::MlaOp;
using ggml::OpAttender;
using ggml::OpCounters;

class OpAttenderTest : public testing::Test {
 protected:
  static constexpr uint32_t kHeads = 4;

  OpAttenderTest() {
    cluster_.fleet.Load("a", a_, {0, 1, 2});
    cluster_.fleet.Load("b", b_, {1, 1});
    Start();
  }
  void Start(const OpAttender::Options& options = {}) {
    attender_ = std::make_unique<OpAttender>(
        [this]() -> absl::StatusOr<Requester*> { return cluster_.requester.get(); }, options);
  }
  CellReference To(const std::string& name, uint32_t begin, uint32_t end, uint64_t position) {
    return ReferenceTo(*cluster_.Resolve(name), begin, end, position);
  }

  struct Use {
    std::string corpus;
    std::vector<ChunkUse> chunks;
  };
  // A dense piece counts its rows from the first, and a selection lists them.
  void AttendRows(EngineCache& cache, uint32_t stream, const QueryView& q,
                  const std::vector<int32_t>& seen, Answer& answer) {
    const bool dense =
        seen.empty() || seen.back() - seen.front() + 1 == static_cast<int32_t>(seen.size());
    AttentionPiece piece;
    piece.q = q;
    const uint32_t begin = dense && !seen.empty() ? static_cast<uint32_t>(seen[0]) : 0;
    piece.rows = {cache.Cell(stream, begin).data(),
                  dense ? static_cast<uint32_t>(seen.size()) : cache.cell_count,
                  cache.geometry.row_bytes()};
    if (!dense) piece.selection = {seen.data(), static_cast<uint32_t>(seen.size()), kHeads};
    piece.out = answer.View();
    AttendPartials(AttentionShape::Of(cache.geometry), {&piece, 1}, pool_);
  }
  // Returns the answer of a token that attends these chunks, and the rows that the mask shows,
  // but not `skip`.
  std::vector<float> Due(EngineCache& cache, uint32_t stream, uint32_t token, uint32_t layer,
                         const std::vector<Use>& uses, const std::vector<uint32_t>& skip) {
    const std::vector<uint16_t> q = cache.Queries(stream, token);
    const QueryView view = {q.data(), kHeads, cache.geometry.d_qk};
    Answer far(kHeads, cache.geometry.d_v), here(kHeads, cache.geometry.d_v),
        merged(kHeads, cache.geometry.d_v);
    std::vector<ContextPart> parts;
    for (const Use& use : uses) parts.push_back({cluster_.Resolve(use.corpus), use.chunks});
    if (parts.empty()) {
      std::fill(far.l.begin(), far.l.end(), 0.0f);
    } else {
      auto context =
          cluster_.requester->Open({.parts = parts, .policy = ContextPolicy::kRoute}, Soon());
      EXPECT_TRUE(context.ok()) << context.status();
      Segment segment = {.row_count = kHeads, .context = &*context};
      LayerCall call;
      call.layer = layer;
      call.q = view;
      call.segments = {&segment, 1};
      call.wire = PartialDtype::kF32;
      call.deadline = Soon();
      const absl::Status status = cluster_.requester->Attend(call, far.View());
      EXPECT_TRUE(status.ok()) << status;
    }
    // The rows that are seen: the first of the longest ranges, then all others.
    std::vector<std::vector<int32_t>> ranges;
    for (uint32_t cell = 0; cell < cache.cell_count; ++cell) {
      if (!cache.Sees(stream, token, cell) ||
          std::find(skip.begin(), skip.end(), cell) != skip.end()) {
        continue;
      }
      if (ranges.empty() || ranges.back().back() + 1 != static_cast<int32_t>(cell))
        ranges.emplace_back();
      ranges.back().push_back(static_cast<int32_t>(cell));
    }
    const auto longest =
        std::max_element(ranges.begin(), ranges.end(),
                         [](const auto& a, const auto& b) { return a.size() < b.size(); });
    std::vector<int32_t> main, rest;
    for (auto range = ranges.begin(); range != ranges.end(); ++range) {
      auto& to = range == longest ? main : rest;
      to.insert(to.end(), range->begin(), range->end());
    }
    Answer others(kHeads, cache.geometry.d_v);
    AttendRows(cache, stream, view, main, here);
    AttendRows(cache, stream, view, rest, others);
    const std::array<ConstPartialView, 3> all = {far.View(), here.View(), others.View()};
    MergePartials(all, kHeads, cache.geometry.d_v, merged.View());
    return merged.o;
  }
  static void ExpectBits(std::span<const float> got, const std::vector<float>& due) {
    ASSERT_EQ(got.size(), due.size());
    EXPECT_EQ(std::memcmp(got.data(), due.data(), got.size_bytes()), 0);
  }
  void Attend(EngineCache& cache, uint32_t layer) {
    const absl::Status status = attender_->Attend(cache.Op(layer));
    ASSERT_TRUE(status.ok()) << status;
  }
  // Offsets that put chunks [begin, end) of a corpus one behind the other from `position` on.
  std::vector<ChunkUse> Uses(const std::string& name, uint32_t begin, uint32_t end,
                             int64_t position) {
    std::vector<ChunkUse> uses;
    const auto corpus = cluster_.Resolve(name);
    for (uint32_t i = begin; i < end; ++i) {
      uses.push_back({i, position - static_cast<int64_t>(corpus->chunks[i].position)});
      position += corpus->chunks[i].token_count;
    }
    return uses;
  }

  TestCorpus a_ = MakeTestCorpus(EngineGeometry(), {40, 9, 130}, 4);
  TestCorpus b_ = MakeTestCorpus(EngineGeometry(), {33, 20}, 5);
  std::unique_ptr<Fabric> fabric_ = NewLoopbackFabric(Clock::Real());
  Cluster cluster_{fabric_.get(), 3, LaneShape{}};
  WorkerPool pool_{1};
  std::unique_ptr<OpAttender> attender_;
};

}  // namespace ckv::test
