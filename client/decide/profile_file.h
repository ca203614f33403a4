// The constants of a calibration as a JSON file: what `ckvctl calibrate` writes, and what people,
// programs and requesters (RequesterOptions::profile) read.
//
// A profile is of one geometry and of one host, which its `subject` names. Requesters use it where
// both are theirs, and there only: see WhyNotOf.

#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/calibrate.h"
#include "client/profile.h"
#include "proto/geometry.h"

namespace ckv {

// One holder, over one fabric.
struct LaneProfile {
  std::string holder;
  std::string fabric;  // "shm", "tcp", "verbs"
  FabricConstants constants;
  ComputeCurve compute = {};
  double wire_share = 0;    // Candidate::wire_share
  double splice_share = 1;  // Candidate::splice_share

  friend bool operator==(const LaneProfile&, const LaneProfile&) = default;
};

struct Profile {
  // What was measured, in words: SubjectOf. Constants of another subject say nothing here.
  std::string subject;
  RequesterConstants here;
  std::vector<LaneProfile> lanes;

  const LaneProfile* Find(std::string_view holder, std::string_view fabric) const;
};

// "GEOMETRY from HOST to HOLDERS, quick": Geometry::ToString(), the first 12 characters of
// `host_identity`, the holders' names with a blank between them, and "quick" or "full".
std::string SubjectOf(const Geometry& geometry, std::string_view host_identity,
                      std::span<const std::string> holders, bool quick);

// Empty where `profile` was measured with `geometry` from the host of `host_identity`
// (HostIdentity(), transport/fabric.h): its subject begins with "GEOMETRY from HOST to ", letter
// for letter as SubjectOf writes it. Else the reason, for people, which says whether it is the
// host. So:
//   geometry  model, revision, layers, widths, dtype and RoPE are the same; the softmax scale and
//             YaRN's betas, which Geometry::ToString leaves out, may differ, for no time hangs on
//             them.
//   host      the same boot of the same machine. After a reboot: calibrate again.
//   holders   are not compared: of a holder that the profile does not name nothing is used.
std::string WhyNotOf(const Profile& profile, const Geometry& geometry,
                     std::string_view host_identity);
// The host alone, where no geometry is known yet: " from HOST to " stands in the subject.
std::string WhyNotFrom(const Profile& profile, std::string_view host_identity);

// Two-space indented, every constant with its unit in its name.
std::string FormatProfile(const Profile& profile);
// here.splice_per_layer_us and here.prefill_per_token_layer_us may be missing: 0, and no prefill.
//   InvalidArgument     not JSON, a field missing, of another type, negative or not finite; more
//                       than kProfileLaneCountMax lanes or ComputeCurve::kAnchorCountMax anchors.
//                       Names the field.
absl::StatusOr<Profile> ParseProfile(std::string_view text);
inline constexpr size_t kProfileLaneCountMax = 4096;

// Whole or not at all: written beside, then renamed.
//   Unavailable         with the system's reason.
absl::Status WriteProfile(const std::string& path, const Profile& profile);
//   NotFound            no such file.
//   InvalidArgument     as ParseProfile, with the path.
absl::StatusOr<Profile> ReadProfile(const std::string& path);

}  // namespace ckv
