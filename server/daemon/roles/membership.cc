#include "server/daemon/roles/membership.h"

#include <string_view>
#include <utility>

#include "proto/base/log.h"
#include "proto/base/status.h"
#include "server/daemon/daemon_parts.h"

namespace ckv {

void Membership::AddHolder(HolderRole* holder) {
  RegistrationOptions options =
      RegistrationOptionsOf(shared_->config, MemberRole::kHolder, shared_->clock);
  options.on_lease = [holder](const LeaseGrant& grant, const LeaseRenewal& renewal) {
    holder->placement().Note(grant, renewal.placed_change_count);
    holder->copies().Note(grant.lease_id, renewal.copy_order_count);
  };
  Add(std::move(options), MemberRole::kHolder, &holder->holder().lease());
}

void Membership::AddRequester() {
  Add(RegistrationOptionsOf(shared_->config, MemberRole::kRequester, shared_->clock),
      MemberRole::kRequester, nullptr);
}

void Membership::Add(RegistrationOptions options, MemberRole role, LeaseGate* lease) {
  options.member.control_address = address_;
  options.member.kernel_target = KernelTargetIdOf(shared_->backends.Of(role).kernel_target());
  options.health = [health = health_, role] { return health->LastOfRole(role); };
  registrars_.push_back(MakeRegistrar(shared_->config, shared_->clock, local_, role));
  registrations_.push_back(
      std::make_unique<Registration>(options, registrars_.back().get(), lease));
}

void Membership::StartWatch(Requester* requester, const std::string& local_address) {
  watch_ = std::make_unique<WatchStub>(
      WatchOptionsOf(shared_->config, shared_->clock, local_address),
      [shared = shared_, requester](std::string_view corpus) {
        if (corpus.empty()) shared->directory_connected.store(true, std::memory_order_relaxed);
        requester->Invalidate(corpus);
      },
      [shared = shared_](const absl::Status& status) {
        shared->directory_connected.store(false, std::memory_order_relaxed);
        Log().warn("changes of corpora arrive late: {}", std::string(status.message()));
      },
      [requester](const Member& member) { requester->OnMemberUp(member); });
}

void Membership::WatchChannel() {
  const std::string& directory = shared_->config.directory;
  // Calls to several directories find the one that leads by themselves.
  const bool is_one = !directory.empty() && directory.find(',') == std::string::npos;
  if (!is_one || registrations_.empty()) return;
  channel_ = std::make_unique<ChannelWatch>(directory, [this] {
    for (const auto& registration : registrations_) registration->Prod();
  });
}

absl::StatusOr<bool> Membership::IsRegistered() const {
  bool registered = true;
  for (const auto& registration : registrations_) {
    const Registration::Report report = registration->report();
    if (report.gave_up) return report.last_error;
    registered &= report.lease.has_value();
  }
  return registered;
}

absl::Status Membership::Await(Instant deadline) {
  for (const auto& registration : registrations_) {
    CKV_RETURN_IF_ERROR(registration->AwaitLease(deadline).status());
  }
  return absl::OkStatus();
}

void Membership::EndWatch() {
  watch_.reset();
  channel_.reset();
  shared_->directory_connected.store(false, std::memory_order_relaxed);
}

}  // namespace ckv
