// The constants of a calibration as a JSON file: what `ckvctl calibrate` writes, and what people
// and programs read.

#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/calibrate.h"
#include "client/profile.h"

namespace ckv {

// One holder, over one fabric.
struct LaneProfile {
  std::string holder;
  std::string fabric;  // "shm", "tcp", "verbs"
  FabricConstants constants;
  ComputeCurve compute = {};
  double wire_share = 0;  // Candidate::wire_share

  friend bool operator==(const LaneProfile&, const LaneProfile&) = default;
};

struct Profile {
  // What was measured, in words: geometry, host. Constants of another subject say nothing here.
  std::string subject;
  RequesterConstants here;
  std::vector<LaneProfile> lanes;

  const LaneProfile* Find(std::string_view holder, std::string_view fabric) const;
};

// Two-space indented, every constant with its unit in its name.
std::string FormatProfile(const Profile& profile);
//   InvalidArgument     not JSON, a field missing, of another type, negative or not finite; more
//   than
//                       kProfileLaneCountMax lanes or ComputeCurve::kAnchorCountMax anchors. Names
//                       the field.
absl::StatusOr<Profile> ParseProfile(std::string_view text);
inline constexpr size_t kProfileLaneCountMax = 4096;

// Whole or not at all: written beside, then renamed.
//   Unavailable         with the system's reason.
absl::Status WriteProfile(const std::string& path, const Profile& profile);
//   NotFound            no such file.
//   InvalidArgument     as ParseProfile, with the path.
absl::StatusOr<Profile> ReadProfile(const std::string& path);

}  // namespace ckv
