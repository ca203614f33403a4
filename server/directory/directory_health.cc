#include "server/directory/directory_health.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

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

void DirectoryHealth::NoteProbe(const Member& member, const absl::Status& answer) {
  absl::MutexLock lock(&tables_.mu);
  Lease* lease = tables_.leases.FindMember(member.id);
  if (lease == nullptr || lease->member.epoch != member.epoch) return;  // another incarnation
  lease->silence = std::string(answer.message());
}

CoverageView DirectoryHealth::View() const {
  CoverageView view;
  for (const auto& [id, lease] : tables_.leases.all()) view.holders.live.insert(id);
  view.holders.lacking = tables_.lacks.all();
  std::set<CorpusKey> lacking;
  for (const auto& [holder, placed] : tables_.corpora.by_holder()) {
    if (view.holders.live.contains(holder) && !view.holders.lacking.contains(holder)) continue;
    for (const auto& [key, count] : placed) lacking.insert(key);
  }
  for (const CorpusKey& key : lacking) {
    CoverageView::Entry& entry =
        view.corpora.emplace_back(CoverageView::Entry{tables_.corpora.Find(key), {}});
    for (const ReplicaTable::Leased& leased : tables_.corpora.replicas().LeasedOf(*entry.corpus))
      entry.leased.push_back(leased.ordinal);
  }
  return view;
}

std::shared_ptr<const Coverage> DirectoryHealth::Covered() {
  absl::MutexLock walk_lock(&walk_mu_);
  CoverageView view;
  {
    absl::MutexLock lock(&tables_.mu);
    tables_.Expire();
    const uint64_t change_count = tables_.watches.change_count();
    if (covered_ != nullptr && covered_at_ == change_count) return covered_;
    covered_at_ = change_count;
    view = View();
  }
  covered_ = std::make_shared<const Coverage>(Cover(view));
  return covered_;
}

DirectoryFacts DirectoryHealth::FactsOfDirectory(Instant now) {
  DirectoryFacts directory;
  const std::vector<HolderId> missing = tables_.returning.List(tables_.corpora);
  directory.missing_holder_count = static_cast<uint32_t>(missing.size());
  for (size_t i = 0; i < std::min(missing.size(), CorpusFacts::kNamedMax); ++i)
    directory.missing_holders.push_back(missing[i].name);
  directory.old_copy = tables_.rebuild.old_copy;
  directory.unproven_count = static_cast<uint32_t>(tables_.reports.count());
  for (const UnprovenCorpus& corpus : tables_.reports.List(kUnprovenNamedMax)) {
    directory.unproven.push_back({corpus.name, corpus.tenant, corpus.chunk_count,
                                  corpus.missing_count, corpus.conflict, corpus.why});
  }
  const bool forgot = !tables_.numbers.is_logged() && tables_.epochs.saw_earlier_incarnation();
  const bool rebuilds = forgot || tables_.reports.count() > 0;
  if (tables_.numbers.folder_id() != 0 && now < tables_.rebuild.from && rebuilds)
    directory.learns_for = tables_.rebuild.from - now;
  return directory;
}

FleetFacts DirectoryHealth::Facts() {
  const std::shared_ptr<const Coverage> covered = Covered();
  FleetFacts facts;
  facts.corpora = covered->corpora;
  facts.skipped_corpus_count = covered->skipped_corpus_count;

  absl::MutexLock lock(&tables_.mu);
  tables_.Expire();
  const Instant now = tables_.options.clock->Now();
  facts.directory = FactsOfDirectory(now);
  for (const auto& [id, lease] : tables_.leases.all()) {
    MemberFacts& member = facts.members.emplace_back(FactsOf(lease.member));
    member.health = lease.health;
    member.clock_ahead = lease.clock_ahead;
    member.placed_count = tables_.corpora.CountPlacedOn(id);
    member.is_reporting = tables_.returning.IsReporting(id);
    if (!lease.silence.empty()) {
      member.silence = Silence::kToProbe;
      member.silence_why = lease.silence;
    }
    const auto counts = covered->holders.find(id);
    if (counts == covered->holders.end()) continue;
    member.lacking_count = counts->second.lacking_count;
    member.sole_count = counts->second.sole_count;
  }
  for (const EndedLease& lease : tables_.leases.Ended(now)) {
    MemberFacts& member = facts.members.emplace_back(FactsOf(lease.member));
    member.has_lease = false;
    member.ran_out = lease.ran_out;
    member.ended_ago = now - lease.ended;
    member.placed_count = tables_.corpora.CountPlacedOn(lease.member.id);
  }
  return facts;
}

}  // namespace ckv
