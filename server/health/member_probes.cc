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
    const auto found = asked_.find(member.id);
    Asked asked;
    if (found != asked_.end()) asked = std::move(found->second);
    if (asked.probe == nullptr || asked.member.control_address != member.control_address) {
      asked = {};
      asked.probe = make_(member.control_address);
      asked.answered = now;
    } else if (asked.member.epoch != member.epoch) {
      asked.answered = now;  // another life begins with a clean sheet
      asked.is_silent = false;
    }
    asked.member = member;
    Look(asked, now, period);
    kept.emplace(member.id, std::move(asked));
  }
  asked_ = std::move(kept);
}

void MemberProbes::Look(Asked& asked, Instant now, Duration period) {
  const uint64_t answer_count = asked.probe->answer_count();
  if (std::exchange(asked.answer_count, answer_count) != answer_count) {
    asked.answered = now;
    asked.has_answered = true;
    if (std::exchange(asked.is_silent, false))
      state_.health().NoteProbe(asked.member, absl::OkStatus());
  }
  const Duration silence = now - asked.answered;
  if (asked.has_answered && !asked.is_silent && silence > kSilentFor + period) {
    asked.is_silent = true;
    state_.health().NoteProbe(asked.member, absl::UnavailableError(absl::StrFormat(
                                                "no answer on its control port for %d s",
                                                silence / std::chrono::seconds(1))));
  }
  if (now - asked.asked < period) return;
  asked.asked = now;
  asked.probe->Ask();
}

}  // namespace ckv
