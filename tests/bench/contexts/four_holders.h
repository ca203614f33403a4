// Four holders that share one CPU, and a requester, in this process and without gRPC.

#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "client/requester.h"
#include "proto/base/status.h"
#include "tests/bench/data_path/data_path.h"
#include "tests/support/borrowed_control.h"
#include "tests/support/named_geometry.h"
#include "tests/support/test_corpus.h"
#include "transport/fabric.h"

namespace ckv::bench {

class FourHolders final : public DirectoryControl, public HolderControlFactory {
 public:
  static constexpr size_t kHolderCount = 4;

  // Chunks of these tokens, with DeepSeek-V2-Lite's geometry but one layer. Ranges of `run` chunks
  // are assigned to the holders in turn.
  FourHolders(FabricKind kind, const std::vector<uint32_t>& tokens, uint32_t run)
      : fabric_(kind == FabricKind::kShm ? NewShmFabric(Clock::Real())
                                         : NewTcpFabric(Clock::Real())) {
    Geometry geometry = *NamedGeometry("deepseek-v2-lite");
    geometry.layers = 1;
    chunks_ = test::MakeTestCorpus(geometry, tokens, 1);
    corpus_ = chunks_.Publish("bench", "", {{HolderId{"h0"}}});
    std::optional<OnCpu> pin(kHolderCpu);
    for (size_t i = 0; i < kHolderCount; ++i) {
      HolderOptions options;
      options.id = {"h" + std::to_string(i)};
      options.fabrics = {fabric_.get()};
      options.capacity_bytes = size_t{128} << 20;
      options.spin_max = Duration(0);
      holders_.push_back(*Holder::Start(options));
      holders_.back()->lease().Grant({1}, kInstantMax);
    }
    pin.reset();
    for (size_t i = 0; i < tokens.size(); ++i) {
      const size_t holder = i / run % kHolderCount;
      corpus_.chunks[i].set_holders({{"h" + std::to_string(holder)}});
      CKV_CHECK(test::PutChunk(holders_[holder]->store(), geometry, chunks_.chunks[i]).ok());
    }
    RequesterOptions options;
    options.local_cache_bytes = 0;  // the benchmark measures routed calls
    options.fabrics = {fabric_.get()};
    requester_ = *Requester::Create(options, this, this);
  }
  ~FourHolders() override { requester_.reset(); }

  Fabric& fabric() { return *fabric_; }
  Holder& holder(size_t i) { return *holders_[i]; }
  Requester& requester() { return *requester_; }
  const Geometry& geometry() const { return corpus_.geometry; }
  const test::TestCorpus& chunks() const { return chunks_; }
  std::shared_ptr<const Corpus> Resolve() { return *requester_->Resolve("bench", "", kInstantMax); }
  // Kernel time of all holders since they started.
  uint64_t ComputeNs() const {
    uint64_t sum = 0;
    for (const auto& holder : holders_) sum += holder->stats().compute_ns;
    return sum;
  }

  absl::StatusOr<Corpus> GetCorpus(std::string_view, std::string_view, Instant) override {
    return corpus_;
  }
  absl::StatusOr<std::vector<Member>> ListMembers(Instant) override {
    std::vector<Member> members;
    for (size_t i = 0; i < kHolderCount; ++i) {
      const std::string name = "h" + std::to_string(i);
      members.push_back({{name}, MemberRole::kHolder, "inproc:" + name, {1}});
    }
    return members;
  }
  absl::StatusOr<std::vector<Corpus>> LocateChunk(const ChunkId&, std::string_view,
                                                  Instant) override {
    return std::vector<Corpus>{corpus_};
  }
  absl::StatusOr<std::unique_ptr<HolderControl>> Connect(const Member& member) override {
    return std::make_unique<test::BorrowedControl>(holders_[size_t(member.id.name[1] - '0')].get());
  }

 private:
  const std::unique_ptr<Fabric> fabric_;
  test::TestCorpus chunks_;
  Corpus corpus_;
  std::vector<std::unique_ptr<Holder>> holders_;
  std::unique_ptr<Requester> requester_;
};

}  // namespace ckv::bench
