// The directory's facts about the fleet's health: what members report, and what corpora lack.

#include <algorithm>
#include <set>
#include <utility>

#include "proto/base/status.h"
#include "server/directory/directory_state.h"

namespace ckv {
namespace {

// Unproven corpora that are listed by name.
constexpr size_t kUnprovenNamedMax = 64;

MemberFacts FactsOf(const Member& member) {
  MemberFacts facts;
  facts.name = member.id.name;
  facts.role = member.role;
  facts.address = member.control_address;
  facts.epoch = member.epoch.value;
  facts.kernel_target = std::string(KernelTargetName(member.kernel_target));
  return facts;
}

}  // namespace

absl::Status DirectoryState::ReportLacking(uint64_t lease_id, std::span<const ChunkId> ids,
                                           bool first, bool last) {
  absl::MutexLock lock(&mu_);
  ExpireLocked();
  CKV_ASSIGN_OR_RETURN(const Lease* lease, FindHolderLease(lease_id, ids.size()));
  CorporaByKey changed;
  for (const ChunkId& id : lacks_.Take(lease->member.id, ids, first, last)) {
    for (const ChunkPlace& place : PlacesOf(id))
      changed.try_emplace({place.corpus->tenant, place.corpus->name}, place.corpus);
  }
  ++change_count_;
  // Requesters that cache the corpus query again, and are sent to other holders.
  TellReplicasChanged(changed);
  return absl::OkStatus();
}

void DirectoryState::NoteProbe(const Member& member, const absl::Status& answer) {
  absl::MutexLock lock(&mu_);
  const auto held = lease_by_member_.find(member.id);
  if (held == lease_by_member_.end()) return;
  Lease& lease = leases_.find(held->second)->second;
  if (lease.member.epoch != member.epoch) return;  // another incarnation
  lease.silence = std::string(answer.message());
}

CoverageView::Holders DirectoryState::HoldersOf(const Corpus& corpus) const {
  CoverageView::Holders holders;
  const CorpusKey key(corpus.tenant, corpus.name);
  for (const auto& [holder, chunks] : lacks_.all()) {
    const auto placed = placed_on_.find(holder);
    if (placed != placed_on_.end() && placed->second.contains(key))
      holders.lacking.emplace(holder, chunks);
  }
  if (holders.lacking.empty()) return holders;
  for (const auto& [id, lease_id] : lease_by_member_) holders.live.insert(id);
  return holders;
}

CoverageView DirectoryState::ViewLocked() {
  CoverageView view;
  for (const auto& [id, lease_id] : lease_by_member_) view.holders.live.insert(id);
  view.holders.lacking = lacks_.all();
  std::set<CorpusKey> lacking;
  for (const auto& [holder, corpora] : placed_on_) {
    if (view.holders.live.contains(holder) && !view.holders.lacking.contains(holder)) continue;
    for (const auto& [key, count] : corpora) lacking.insert(key);
  }
  for (const CorpusKey& key : lacking) {
    const std::shared_ptr<const Corpus>& corpus = corpora_.find(key)->second;
    CoverageView::Entry& entry = view.corpora.emplace_back(CoverageView::Entry{corpus, {}});
    for (const ReplicaTable::Leased& leased : replicas_.LeasedOf(*corpus))
      entry.leased.push_back(leased.ordinal);
  }
  return view;
}

std::shared_ptr<const Coverage> DirectoryState::Covered() {
  // Held during the walk over corpora: callers that arrive at the same time share one walk.
  absl::MutexLock facts_lock(&facts_mu_);
  CoverageView view;
  {
    absl::MutexLock lock(&mu_);
    ExpireLocked();
    if (covered_ != nullptr && covered_at_ == change_count_) return covered_;
    covered_at_ = change_count_;
    view = ViewLocked();
  }
  covered_ = std::make_shared<const Coverage>(Cover(view));
  return covered_;
}

FleetFacts DirectoryState::Facts() {
  const std::shared_ptr<const Coverage> covered = Covered();
  FleetFacts facts;
  facts.corpora = covered->corpora;
  facts.skipped_corpus_count = covered->skipped_corpus_count;
  DirectoryFacts& directory = facts.directory.emplace();
  const std::vector<HolderId> missing = MissingHolders();
  directory.missing_holder_count = static_cast<uint32_t>(missing.size());
  for (size_t i = 0; i < std::min(missing.size(), CorpusFacts::kNamedMax); ++i)
    directory.missing_holders.push_back(missing[i].name);
  const std::vector<EndedLease> ended = Ended();

  absl::MutexLock lock(&mu_);
  const Instant now = options_.clock->Now();
  directory.old_copy = old_copy_;
  directory.unproven_count = static_cast<uint32_t>(rebuild_.count());
  for (const UnprovenCorpus& corpus : rebuild_.List(kUnprovenNamedMax)) {
    directory.unproven.push_back({corpus.name, corpus.tenant, corpus.chunk_count,
                                  corpus.missing_count, corpus.conflict, corpus.why});
  }
  const bool forgot = journal_ == nullptr && saw_earlier_life_;
  if (folder_id_ != 0 && now < rebuild_from_ && (forgot || rebuild_.count() > 0))
    directory.learns_for = rebuild_from_ - now;
  const auto placed_on = [this](const HolderId& holder) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    uint64_t sum = 0;
    const auto placed = placed_on_.find(holder);
    if (placed == placed_on_.end()) return sum;
    for (const auto& [key, count] : placed->second) sum += count;
    return sum;
  };
  for (const auto& [id, lease_id] : lease_by_member_) {
    const Lease& lease = leases_.find(lease_id)->second;
    MemberFacts& member = facts.members.emplace_back(FactsOf(lease.member));
    member.health = lease.health;
    member.clock_ahead = lease.clock_ahead;
    member.placed_count = placed_on(id);
    member.is_reporting = reporting_.contains(id);
    if (!lease.silence.empty()) {
      member.silence = Silence::kToProbe;
      member.silence_why = lease.silence;
    }
    const auto counts = covered->holders.find(id);
    if (counts == covered->holders.end()) continue;
    member.lacking_count = counts->second.lacking_count;
    member.sole_count = counts->second.sole_count;
  }
  for (const EndedLease& lease : ended) {
    if (lease_by_member_.contains(lease.member.id)) continue;  // it has just registered again
    MemberFacts& member = facts.members.emplace_back(FactsOf(lease.member));
    member.has_lease = false;
    member.ran_out = lease.ran_out;
    member.ended_ago = now - lease.ended;
    member.placed_count = placed_on(lease.member.id);
  }
  return facts;
}

}  // namespace ckv
