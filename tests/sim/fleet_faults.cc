// The effect of each planned fault on a fleet.

#include <algorithm>
#include <utility>

#include "tests/sim/fleet.h"

namespace ckv::sim {

namespace {

// Adds the fault to a link of its node: `is_there` from the node, or else to it.
void AddTo(Link& link, const PlannedFault& fault, bool is_there) {
  switch (fault.kind) {
    case Fault::kPartition:
      link.blocked = true;
      break;
    case Fault::kPartitionOneWay:
      if (is_there == (fault.salt % 2 == 0)) link.blocked = true;
      break;
    case Fault::kDrop:
      link.drop = std::max(link.drop, 0.3 * fault.strength);
      break;
    case Fault::kDelay:
      link.slow = 0.5;
      link.slow_max = kMs + static_cast<int64_t>(fault.strength * 200 * kMs);
      break;
    case Fault::kDuplicate:
      link.duplicate = fault.strength;
      break;
    case Fault::kCorrupt:
      link.corrupt = 0.2 * fault.strength;
      break;
    case Fault::kBreak:
      link.break_lane = 0.1 * fault.strength;
      break;
    default:
      break;
  }
}

}  // namespace

void Fleet::ApplyLinks() {
  std::erase_if(active_, [](const auto& one) { return one.second <= Sim().now(); });
  const uint32_t count = plan_.shape.node_count();
  for (uint32_t a = 0; a < count; ++a) {
    for (uint32_t b = 0; b < count; ++b) network_.link(a, b) = Link();
  }
  for (const auto& [fault, until] : active_) {
    const bool from_all = fault.salt % 3 == 0;  // of all peers, or of one
    for (uint32_t peer = 0; peer < count; ++peer) {
      if (peer == fault.a || (!from_all && peer != fault.b)) continue;
      AddTo(network_.link(fault.a, peer), fault, /*is_there=*/true);
      AddTo(network_.link(peer, fault.a), fault, /*is_there=*/false);
    }
  }
}

void Fleet::Apply(const PlannedFault& fault) {
  Say(fault.Text());
  Node& at = node(fault.a);
  const int64_t until = Sim().now() + fault.duration;
  switch (fault.kind) {
    case Fault::kPartition:
    case Fault::kPartitionOneWay:
      network_.Count(fault.kind);
      [[fallthrough]];
    case Fault::kDrop:
    case Fault::kDelay:
    case Fault::kDuplicate:
    case Fault::kCorrupt:
    case Fault::kBreak:
      active_.emplace_back(fault, until);
      ApplyLinks();
      Sim().At(until, [this] { ApplyLinks(); });
      break;
    case Fault::kCrash:
    case Fault::kPowerLoss:
      Kill(fault);
      break;
    case Fault::kRestart:
      StopInOrder(at);
      break;
    case Fault::kStop:
      if (at.up()) {
        network_.Count(Fault::kStop);
        at.life->process.stopped_until = std::max(at.life->process.stopped_until, until);
      }
      break;
    case Fault::kWallJump:
      if (at.up()) {
        network_.Count(Fault::kWallJump);
        at.life->process.wall_ahead_ns =
            static_cast<int64_t>((fault.strength - 0.5) * 7200 * static_cast<double>(kSecond));
      }
      break;
    case Fault::kSlow:
    case Fault::kDiskFull:
    case Fault::kDiskError:
    case Fault::kNoDescriptors:
      ApplyToDisk(fault);
      break;
    case Fault::kBitFlip:
      FlipBit(fault);
      break;
    case Fault::kPastElbow:
      PassElbow(fault);
      break;
    default:
      GiveOrder(fault);
  }
}

// At once, or in the middle of one of its next calls of its disk. A put makes about twelve, of
// which four sync.
void Fleet::Kill(const PlannedFault& fault) {
  Node& at = node(fault.a);
  const auto kill = [this, &at, fault] {
    End(at, fault.kind == Fault::kPowerLoss, fault.duration);
  };
  if (!plan_.shape.has_disk(fault.a) || fault.salt % 4 == 0) return kill();
  const uint64_t which = fault.salt / 4;
  using Does = SimDisk::Does;
  if (which % 2 == 0) return at.disk->TripAt(1 + which / 2 % 4, Does::kSyncs, kill);
  at.disk->TripAt(1 + which / 2 % 12, Does::kChanges, kill);
}

void Fleet::ApplyToDisk(const PlannedFault& fault) {
  SimDisk& disk = *node(fault.a).disk;
  const int64_t until = Sim().now() + fault.duration;
  switch (fault.kind) {
    case Fault::kSlow:
      network_.Count(Fault::kSlow);
      return disk.SlowUntil(until);
    case Fault::kDiskFull:
      return disk.FillUntil(until);
    case Fault::kDiskError:
      return disk.FailUntil(until);
    default:
      if (node(fault.a).up()) node(fault.a).life->process.no_descriptors_until = until;
      return disk.NoDescriptorsUntil(until);
  }
}

bool Fleet::IsListedElsewhere(const KnownCorpus& corpus, size_t chunk,
                              const std::string& holder) const {
  for (const Node* at : directories_.nodes) {
    if (!at->up() || at->life->directory == nullptr) continue;
    if (at->life->etcd != nullptr && !at->life->etcd->report().leads) continue;
    const auto found = at->life->directory->Get(corpus.name, corpus.tenant);
    if (!found.ok() || chunk >= (*found)->chunks.size()) return false;
    for (const HolderId& has : (*found)->chunks[chunk].holders())
      if (has.name != holder) return true;
    return false;
  }
  return false;
}

// Chooses a chunk of which another holder has a whole copy that the directory lists. The fleet need
// not find others: a load whose publication failed, or a drain, leaves those behind.
void Fleet::FlipBit(const PlannedFault& fault) {
  for (const auto& corpus : truth_.corpora()) {
    for (size_t i = 0; i < corpus->acknowledged; ++i) {
      const std::set<uint32_t>& places = corpus->places[i];
      if (places.size() < 2 || !places.contains(fault.a) || corpus->flipped.contains(i)) continue;
      if (!IsListedElsewhere(*corpus, i, node(fault.a).name)) continue;
      const std::string name = corpus->whole.chunks[i].info.id.ToHex();
      if (!node(fault.a).disk->FlipBit(name, fault.salt * 0x9e3779b97f4a7c15)) continue;
      corpus->flipped[i] = fault.a;
      return network_.Count(Fault::kBitFlip);
    }
  }
}

// All holders but one are past their elbow: a chunk gets a leased copy if all that have it are.
void Fleet::PassElbow(const PlannedFault& fault) {
  network_.Count(Fault::kPastElbow);
  const KnownCorpus& corpus = *truth_.corpora()[fault.salt % truth_.corpora().size()];
  const ChunkId& hot = corpus.whole.chunks[fault.salt / 64 % corpus.whole.chunks.size()].info.id;
  for (uint32_t i = 0; i < plan_.shape.holder_count; ++i) {
    const Node& holder = node(plan_.shape.holder(i));
    if (holder.number == fault.a || !holder.up()) continue;
    holder.life->past_elbow_until = Sim().now() + fault.duration;
    holder.life->hot = {hot};
  }
}

void Fleet::GiveOrder(const PlannedFault& fault) {
  switch (fault.kind) {
    case Fault::kLoad:
      network_.Count(Fault::kLoad);
      orders_.push_back([this, fault] {
        KnownCorpus& corpus = truth_.Add(fault.salt % 2 == 0 ? "" : "t1", 2 + fault.salt % 5);
        Load(corpus, 1 + fault.salt % (corpus.whole.chunks.size()));
      });
      break;
    case Fault::kExtend:
      network_.Count(Fault::kExtend);
      orders_.push_back([this, fault] {
        KnownCorpus& corpus = *truth_.corpora()[fault.salt % truth_.corpora().size()];
        const size_t now = corpus.acknowledged;
        if (now == 0 || corpus.drop_began || now == corpus.whole.chunks.size()) return;
        Load(corpus, now + 1);
      });
      break;
    case Fault::kDrain:
      orders_.push_back([this, fault] { DrainHolder(node(fault.a)); });
      break;
    case Fault::kTurnBack:
      orders_.push_back(
          [this, fault] { TurnBack(*truth_.corpora()[fault.salt % truth_.corpora().size()]); });
      break;
    case Fault::kDropCorpus:
      network_.Count(Fault::kDropCorpus);
      orders_.push_back([this, fault] {
        const size_t count = truth_.corpora().size();
        if (count > 2) DropCorpus(*truth_.corpora()[2 + fault.salt % (count - 2)]);
      });
      break;
    default:
      break;
  }
}

}  // namespace ckv::sim
