// The operator: puts chunks at holders, and publishes, extends and drops corpora.

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/publish/chunk_source.h"
#include "proto/base/status.h"
#include "tests/sim/client_calls.h"
#include "tests/sim/fleet.h"
#include "tests/sim/stubs.h"

namespace ckv::sim {
namespace {

constexpr uint32_t kReplicas = 2;

// The first chunks of a corpus.
class KnownSource final : public ChunkSource {
 public:
  KnownSource(const KnownCorpus& corpus, const Geometry& geometry, size_t count) : corpus_(corpus) {
    geometry_ = geometry;
    for (size_t i = 0; i < count; ++i) {
      const ChunkInfo& info = corpus.whole.chunks[i].info;
      chunks_.push_back({.id = info.id,
                         .parent = info.parent,
                         .position = info.position,
                         .token_count = info.token_count()});
    }
  }
  std::span<const int32_t> TokensOf(uint32_t ordinal) const override {
    return corpus_.whole.chunks[ordinal].info.token_ids;
  }
  absl::StatusOr<SourceChunk> Read(uint32_t ordinal) override {
    const test::TestChunk* const chunk = &corpus_.whole.chunks[ordinal];
    return SourceChunk{
        chunk->info,
        [chunk](uint32_t layer) { return std::as_bytes(std::span(chunk->layers[layer])); },
        nullptr};
  }

 private:
  const KnownCorpus& corpus_;
};

}  // namespace

void Fleet::ConnectPublisher() {
  ThePublishCalls() = {
      .operator_life = operator_life_,
      .directories = &directories_,
      .nodes = &nodes_,
      .on_put = [this](const Node& holder,
                       const ChunkId& id) { truth_.NotePut(holder.number, id); },
      .on_publish = [this](const Corpus& corpus) { truth_.CheckPublished(corpus, nodes_); }};
  publisher_ = std::make_unique<Publisher>("directories", &operator_life_->clock);
}

void Fleet::RunOperator() {
  while (!ends_) {
    Sim().Block(Sim().now() + kSecond, [&] { return !orders_.empty() || ends_; });
    if (orders_.empty()) continue;
    absl::AnyInvocable<void()> order = std::move(orders_.front());
    orders_.pop_front();
    order();
  }
}

std::vector<uint32_t> Fleet::LiveHolders() {
  DirectoryCalls directory(&directories_, operator_life_);
  std::vector<uint32_t> live;
  const auto members = directory.ListMembers(operator_life_->clock.Now() + std::chrono::seconds(1));
  if (!members.ok()) return live;
  for (const Member& member : *members) {
    if (member.role == MemberRole::kHolder) {
      live.push_back(NodeAt(nodes_, member.control_address)->number);
    }
  }
  return live;
}

bool Fleet::Load(KnownCorpus& corpus, size_t chunk_count) {
  KnownSource source(corpus, truth_.geometry(), chunk_count);
  ExtendTarget target;
  target.corpus = corpus.name;
  target.tenant = corpus.tenant;
  target.create = true;
  for (int attempt = 0; attempt < 20 && !ends_; ++attempt) {
    if (attempt != 0) Sim().SleepUntil(Sim().now() + 300 * kMs);
    // With fewer holders than copies, the directory makes the others later.
    target.replicas = static_cast<uint32_t>(std::clamp<size_t>(LiveHolders().size(), 1, kReplicas));
    corpus.lengths.insert(chunk_count);
    const auto extended =
        publisher_->Extend(target, source, operator_life_->clock.Now() + std::chrono::seconds(4));
    if (extended.ok()) {
      corpus.acknowledged = std::max(corpus.acknowledged, chunk_count);
      Say(absl::StrFormat("published %s, %d chunks", corpus.name, chunk_count));
      return true;
    }
    Say(absl::StrCat("publish: ", extended.status().ToString()));
  }
  return false;
}

absl::Status Fleet::SetDraining(const Node& holder, bool drains) {
  return CallDirectory<absl::Status>(
      directories_, *operator_life_, Sim().now() + 2 * kSecond, CallTo::kLeader,
      [id = HolderId{holder.name}, drains](DirectoryState& state) {
        return state.replication().SetDraining(id, drains, kInstantMax);
      });
}

void Fleet::DrainHolder(Node& holder) {
  const int64_t until = Sim().now() + 15 * kSecond;
  using State = absl::StatusOr<Replication::DrainState>;
  bool may_go = false;
  while (!may_go && !settles_ && !truth_.failed() && Sim().now() < until) {
    Sim().SleepUntil(Sim().now() + 200 * kMs);
    if (!SetDraining(holder, true).ok()) continue;
    const State state = CallDirectory<State>(
        directories_, *operator_life_, Sim().now() + 2 * kSecond, CallTo::kLeader,
        [this, id = HolderId{holder.name}](DirectoryState& at) -> State {
          CKV_ASSIGN_OR_RETURN(Replication::DrainState now, at.replication().DrainOf(id));
          if (now.may_go) truth_.CheckDrained(at, id);
          return now;
        });
    may_go = state.ok() && state->may_go;
  }
  Life* const life = holder.life;
  if (may_go && !settles_ && !life->process.dead && !life->ending) {
    Say(absl::StrCat("is drained, and gets another disk: ", life->process.name));
    network_.Count(Fault::kDrain);
    life->ending = true;
    Sim().Block(kNever, [&] { return life->ended || life->process.dead; });
    if (!life->process.dead) {
      life->process.dead = true;
      BreakLanesOf(*hub_, &life->process, /*silent=*/false);
      holder.disk->EndProcess(&life->process);
      holder.disk->Wipe();
      for (const auto& corpus : truth_.corpora()) {
        for (auto& places : corpus->places) places.erase(holder.number);
      }
      Start(holder);
    }
  }
  while (!ends_ && !SetDraining(holder, false).ok()) Sim().SleepUntil(Sim().now() + 300 * kMs);
}

absl::StatusOr<Corpus> Fleet::OwnCorpus(const std::string& name, const std::string& tenant) {
  using Read = absl::StatusOr<Corpus>;
  return CallDirectory<Read>(directories_, *operator_life_, Sim().now() + 2 * kSecond,
                             CallTo::kLeader, [name, tenant](DirectoryState& state) -> Read {
                               CKV_ASSIGN_OR_RETURN(const auto found, state.Get(name, tenant));
                               Corpus corpus = *found;
                               for (ChunkPlacement& chunk : corpus.chunks) chunk.set_leased({});
                               return corpus;
                             });
}

// As ckvctl corpus set --keep-versions, corpus load --replace and corpus rollback.
void Fleet::TurnBack(KnownCorpus& corpus) {
  if (corpus.acknowledged == 0 || corpus.drop_began) return;
  const absl::StatusOr<Corpus> current = OwnCorpus(corpus.name, corpus.tenant);
  if (!current.ok() || current->chunks.size() < 2) return;
  using Names = absl::StatusOr<std::vector<std::string>>;
  const Names kept = CallDirectory<Names>(
      directories_, *operator_life_, Sim().now() + 2 * kSecond, CallTo::kLeader,
      [name = corpus.name, tenant = corpus.tenant](DirectoryState& state) -> Names {
        std::vector<std::string> names;
        for (const auto& one : state.List(tenant)) {
          const auto version = ParseVersionName(one->name);
          if (version && version->name == name) names.push_back(one->name);
        }
        return names;
      });
  if (!kept.ok()) return;
  absl::StatusOr<Corpus> next = current;
  if (kept->empty()) {
    next->chunks.pop_back();
    next->policy = {.kept_version_count = 2};
  } else {
    next = OwnCorpus(kept->back(), corpus.tenant);
    if (!next.ok()) return;
    next->name = corpus.name;
    next->policy = {};
  }
  // From now on it may have this length, whatever becomes of the answer.
  const size_t chunk_count = next->chunks.size();
  corpus.lengths.insert(chunk_count);
  corpus.acknowledged = std::min(corpus.acknowledged, chunk_count);
  const auto published = CallDirectory<absl::StatusOr<uint64_t>>(
      directories_, *operator_life_, Sim().now() + 2 * kSecond, CallTo::kLeader,
      [next = *next, version = current->version](DirectoryState& state) {
        return state.Publish(next, /*replace=*/true, version);
      });
  if (!published.ok()) return;
  network_.Count(Fault::kTurnBack);
  corpus.acknowledged = chunk_count;
  Say(absl::StrFormat("%s has %d chunks again", corpus.name, chunk_count));
}

void Fleet::DropCorpus(KnownCorpus& corpus) {
  corpus.drop_began = true;
  const absl::Status dropped = CallDirectory<absl::Status>(
      directories_, *operator_life_, Sim().now() + 2 * kSecond, CallTo::kLeader,
      [&corpus](DirectoryState& state) { return state.Drop(corpus.name, corpus.tenant).status(); });
  if (dropped.ok()) corpus.drop_acknowledged = true;
}

}  // namespace ckv::sim
