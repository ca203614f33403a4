// The constants of a calibration as a JSON file. `ckvctl calibrate` writes it. People, programs and
// requesters (RequesterOptions::profile) read it.
//
// A profile belongs to one geometry and one host, named by its `subject`. Requesters use it only if
// both are theirs: see WhyNotOf.

#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/decide/profile.h"
#include "proto/geometry.h"

namespace ckv {

// The constants of one holder over one fabric.
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
  // Says in words what was measured, as SubjectOf writes it. Its constants apply to nothing else.
  std::string subject;
  RequesterConstants here;
  std::vector<LaneProfile> lanes;

  // Returns the lane of this holder and fabric, or null.
  const LaneProfile* Find(std::string_view holder, std::string_view fabric) const;
};

// Returns "GEOMETRY from HOST to HOLDERS, quick". GEOMETRY is Geometry::ToString(), HOST the first
// 12 characters of `host_identity`. HOLDERS are the holders' names, separated by blanks. The last
// word is "quick" or "full".
std::string SubjectOf(const Geometry& geometry, std::string_view host_identity,
                      std::span<const std::string> holders, bool quick);

// Returns an empty string if `profile` was measured with `geometry` from the host of
// `host_identity` (HostIdentity(), transport/fabric.h). Its subject must begin with "GEOMETRY from
// HOST to ", letter for letter as SubjectOf writes it. Otherwise it returns the reason for people,
// which says whether the host is at fault. The parts compare so:
//   geometry  Model, revision, layers, widths, dtype and RoPE must be the same. The softmax scale
//             and YaRN's betas, which Geometry::ToString leaves out, may differ: no time depends
//             on them.
//   host      Must be the same boot of the same machine. After a reboot, calibrate again.
//   holders   Are not compared. Nothing is used for a holder that the profile does not name.
std::string WhyNotOf(const Profile& profile, const Geometry& geometry,
                     std::string_view host_identity);
// Checks the host alone, if no geometry is known yet: " from HOST to " must stand in the subject.
std::string WhyNotFrom(const Profile& profile, std::string_view host_identity);

// Writes JSON indented by two spaces. The name of every constant ends in its unit.
std::string FormatProfile(const Profile& profile);
// Reads what FormatProfile writes. If here.splice_per_layer_us is missing, it is 0; if
// here.prefill_per_token_layer_us is missing, it is unset.
//   InvalidArgument     the text is not JSON, or a field is missing, has another type, or is
//                       negative or not finite. More than kProfileLaneCountMax lanes or
//                       ComputeCurve::kAnchorCountMax anchors are refused too. Names the field.
absl::StatusOr<Profile> ParseProfile(std::string_view text);
inline constexpr size_t kProfileLaneCountMax = 4096;

// Writes the file as an OutputFile does (store/formats/output_file.h), whatever `path` is.
//   Errors as OutputFile.
absl::Status WriteProfile(const std::string& path, const Profile& profile);
// Reads and parses the file.
//   NotFound            there is no file at `path`.
//   InvalidArgument     as ParseProfile, with the path.
absl::StatusOr<Profile> ReadProfile(const std::string& path);

}  // namespace ckv
