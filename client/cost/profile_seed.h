// Decides which of a requester's constants come from a profile.

#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "client/cost/profile_file.h"
#include "proto/geometry.h"

namespace ckv {

// A profile as one requester uses it: only for the widths it was measured with, on the host it was
// measured from (WhyNotOf, WhyNotFrom). If the profile is not used, one warning gives the reason.
// Thread-safe.
class SeedProfile {
 public:
  // The most geometries that one requester looks up. The profile is not used for any beyond that.
  static constexpr uint32_t kGeometryCountMax = 16;

  // If `profile` is null, nothing is covered and nothing is logged. `target` is the kernel target
  // of this process.
  SeedProfile(std::shared_ptr<const Profile> profile, std::string host_identity,
              KernelTargetId target);

  // Returns the profile if it covers `geometry` on this host, or null. The first lookup of a
  // geometry takes a lock and allocates. Later ones take about 20 ns and no lock.
  const Profile* For(const Geometry& geometry) const ABSL_LOCKS_EXCLUDED(mu_);
  // Returns the profile if it belongs to this host, for any geometry. Otherwise returns null.
  const Profile* profile() const { return profile_.get(); }

 private:
  struct Seen {
    Geometry geometry;
    bool covered = false;
  };

  const Profile* Judge(const Geometry& geometry) const ABSL_LOCKS_EXCLUDED(mu_);

  const std::string host_identity_;
  const KernelTargetId target_;
  std::shared_ptr<const Profile> profile_;  // constant after construction
  // Guards additions to seen_; entries below seen_count_ never change.
  mutable absl::Mutex mu_;
  mutable std::array<Seen, kGeometryCountMax> seen_;
  mutable std::atomic<uint32_t> seen_count_{0};
};

}  // namespace ckv
