// Which of a requester's constants a profile may stand for.

#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "client/profile_file.h"
#include "proto/geometry.h"

namespace ckv {

// A profile as one requester uses it: for the geometries that it was measured with, on the host
// that it was measured from (WhyNotOf, WhyNotFrom), and never otherwise. What is not used is said
// once, at warning, with the reason. Thread-safe.
class SeedProfile {
 public:
  // Geometries that a requester sees; of more than these, the profile is not used for the others.
  static constexpr uint32_t kGeometryCountMax = 16;

  // Null: nothing is covered, and nothing said.
  SeedProfile(std::shared_ptr<const Profile> profile, std::string host_identity);

  // The profile if it speaks of `geometry` from here, else null. The first question of a geometry
  // takes a lock and allocates; after that some 20 ns, no lock.
  const Profile* For(const Geometry& geometry) const ABSL_LOCKS_EXCLUDED(mu_);
  // The profile if it is of this host; of some geometry. Null: never used.
  const Profile* profile() const { return profile_.get(); }

 private:
  struct Seen {
    Geometry geometry;
    bool covered = false;
  };

  const Profile* Judge(const Geometry& geometry) const ABSL_LOCKS_EXCLUDED(mu_);

  const std::string host_identity_;
  std::shared_ptr<const Profile> profile_;  // constant after construction
  mutable absl::Mutex mu_;                  // to add to seen_: those below seen_count_ never change
  mutable std::array<Seen, kGeometryCountMax> seen_;
  mutable std::atomic<uint32_t> seen_count_{0};
};

}  // namespace ckv
