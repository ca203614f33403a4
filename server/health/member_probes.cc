#include "server/health/member_probes.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"

namespace ckv {

void MemberProbes::Tick() {
  const Instant now = clock_.Now();
  const std::vector<Member> members = state_.Members();
  const Duration period =
      std::max<Duration>(kPeriod, kShare * static_cast<int64_t>(members.size()));
  std::map<HolderId, Asked> kept;
  for (const Member& member : members) {
    const auto found = requested_.find(member.id);
    Asked requested;
    if (found != requested_.end()) requested = std::move(found->second);
    if (requested.probe == nullptr || requested.member.control_address != member.control_address) {
      requested = {};
      requested.probe = make_(member.control_address);
      requested.answered = now;
    } else if (requested.member.epoch != member.epoch) {
      requested.answered = now;  // another life begins with a clean sheet
      requested.is_silent = false;
    }
    requested.member = member;
    Look(requested, now, period);
    kept.emplace(member.id, std::move(requested));
  }
  requested_ = std::move(kept);
}

void MemberProbes::Look(Asked& requested, Instant now, Duration period) {
  const uint64_t answer_count = requested.probe->answer_count();
  if (std::exchange(requested.answer_count, answer_count) != answer_count) {
    requested.answered = now;
    requested.has_answered = true;
    if (std::exchange(requested.is_silent, false))
      state_.health().NoteProbe(requested.member, absl::OkStatus());
  }
  const Duration silence = now - requested.answered;
  if (requested.has_answered && !requested.is_silent && silence > kSilentFor + period) {
    requested.is_silent = true;
    state_.health().NoteProbe(requested.member, absl::UnavailableError(absl::StrFormat(
                                                    "no answer on its control port for %d s",
                                                    silence / std::chrono::seconds(1))));
  }
  if (now - requested.requested < period) return;
  requested.requested = now;
  requested.probe->Send();
}

}  // namespace ckv
