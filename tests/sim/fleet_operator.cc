// The operator: puts chunks at holders, and publishes, extends and drops corpora.

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "proto/base/status.h"
#include "tests/sim/fleet.h"
#include "tests/sim/stubs.h"

namespace ckv::sim {
namespace {

constexpr uint32_t kReplicas = 2;

}  // namespace

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
  DirectoryCalls directory(&network_, operator_life_, nodes_[0].get());
  std::vector<uint32_t> live;
  const auto members = directory.ListMembers(operator_life_->clock.Now() + std::chrono::seconds(1));
  if (!members.ok()) return live;
  for (const Member& member : *members) {
    if (member.role == MemberRole::kHolder) {
      live.push_back(static_cast<uint32_t>(std::stoul(member.control_address)));
    }
  }
  return live;
}

bool Fleet::PutChunk(const KnownCorpus& corpus, size_t chunk, Node& holder) {
  const absl::Status put = CallNode<absl::Status>(
      network_, &operator_life_->process, holder, Sim().now() + 2 * kSecond,
      [this, &corpus, chunk](Life& life) -> absl::Status {
        if (life.holder == nullptr) return absl::UnavailableError("starting");
        const test::TestChunk& one = corpus.whole.chunks[chunk];
        auto begun = life.holder->store().Begin(one.info, truth_.geometry(), corpus.tenant);
        if (absl::IsAlreadyExists(begun.status())) return absl::OkStatus();
        if (!begun.ok()) return begun.status();
        for (uint32_t layer = 0; layer < truth_.geometry().layers; ++layer) {
          CKV_RETURN_IF_ERROR(begun->Write(layer, 0, std::as_bytes(std::span(one.layers[layer]))));
        }
        const absl::Status finished = std::move(*begun).Finish();
        return absl::IsAlreadyExists(finished) ? absl::OkStatus() : finished;
      });
  if (!put.ok()) Say(absl::StrCat("put at ", holder.name, ": ", put.ToString()));
  return put.ok();
}

bool Fleet::Load(KnownCorpus& corpus, size_t chunk_count) {
  Corpus published = corpus.whole.Publish(corpus.name, corpus.tenant, {{HolderId{"none"}}});
  published.replica_count = kReplicas;
  published.chunks.resize(chunk_count);
  for (int attempt = 0; attempt < 20 && !ends_; ++attempt) {
    if (attempt != 0) Sim().SleepUntil(Sim().now() + 300 * kMs);
    std::vector<uint32_t> live = LiveHolders();
    std::shuffle(live.begin(), live.end(), random_);
    bool is_whole = true;
    for (size_t i = 0; i < chunk_count && is_whole; ++i) {
      for (const uint32_t number : live) {
        if (corpus.places[i].size() >= kReplicas) break;
        if (PutChunk(corpus, i, node(number))) corpus.places[i].insert(number);
      }
      published.chunks[i].holders.clear();
      for (const uint32_t number : corpus.places[i]) {
        published.chunks[i].holders.push_back({node(number).name});
      }
      is_whole = !corpus.places[i].empty();
    }
    if (!is_whole) continue;
    corpus.lengths.insert(chunk_count);
    using Version = absl::StatusOr<uint64_t>;
    const Version version = CallNode<Version>(
        network_, &operator_life_->process, node(0), Sim().now() + 2 * kSecond,
        [published](Life& life) -> Version {
          if (life.directory == nullptr) return absl::UnavailableError("starting");
          return life.directory->Publish(published, /*replace=*/true, /*expected_version=*/0);
        });
    if (version.ok()) {
      corpus.acknowledged = std::max(corpus.acknowledged, chunk_count);
      Say(absl::StrFormat("published %s, %d chunks", corpus.name, chunk_count));
      return true;
    }
    Say(absl::StrCat("publish: ", version.status().ToString()));
  }
  return false;
}

absl::Status Fleet::SetDraining(const Node& holder, bool drains) {
  return CallNode<absl::Status>(network_, &operator_life_->process, node(0),
                                Sim().now() + 2 * kSecond,
                                [id = HolderId{holder.name}, drains](Life& life) -> absl::Status {
                                  if (life.directory == nullptr)
                                    return absl::UnavailableError("starting");
                                  return life.directory->replication().SetDraining(
                                      id, drains, life.clock.Now() + std::chrono::seconds(2));
                                });
}

void Fleet::DrainHolder(Node& holder) {
  const int64_t until = Sim().now() + 15 * kSecond;
  using State = absl::StatusOr<Replication::DrainState>;
  bool may_go = false;
  while (!may_go && !settles_ && !truth_.failed() && Sim().now() < until) {
    Sim().SleepUntil(Sim().now() + 200 * kMs);
    if (!SetDraining(holder, true).ok()) continue;
    const State state =
        CallNode<State>(network_, &operator_life_->process, node(0), Sim().now() + 2 * kSecond,
                        [this, id = HolderId{holder.name}](Life& life) -> State {
                          if (life.directory == nullptr) return absl::UnavailableError("starting");
                          CKV_ASSIGN_OR_RETURN(Replication::DrainState now,
                                               life.directory->replication().DrainOf(id));
                          if (now.may_go) truth_.CheckDrained(*life.directory, id);
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

void Fleet::DropCorpus(KnownCorpus& corpus) {
  corpus.drop_began = true;
  const absl::Status dropped =
      CallNode<absl::Status>(network_, &operator_life_->process, node(0), Sim().now() + 2 * kSecond,
                             [&corpus](Life& life) -> absl::Status {
                               if (life.directory == nullptr)
                                 return absl::UnavailableError("starting");
                               return life.directory->Drop(corpus.name, corpus.tenant).status();
                             });
  if (dropped.ok()) corpus.drop_acknowledged = true;
}

}  // namespace ckv::sim
