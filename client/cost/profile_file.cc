// Writes a Profile as JSON, and reads it back. ParseProfile, in order: the version;
// the subject; the constants of this machine; the lanes; the kernel
// record. It refuses numbers that are missing, negative or not finite, by the name of the field.
// WhyNotOf compares a profile with a geometry, host and kernel target before it is used.

#include "client/cost/profile_file.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/cost/kernel_record.h"
#include "proto/base/status.h"
#include "store/formats/json.h"
#include "store/formats/output_file.h"

namespace ckv {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kDepthMax = 6;
constexpr int kProfileVersion = 1;
constexpr size_t kFileBytesMax = size_t{16} << 20;
constexpr size_t kHostCharacters =
    12;  // characters shown of an identity, which begins with a boot id

constexpr const char* kOtherHost = "of another host, or of this one before it booted again: ";

std::string From(std::string_view host_identity) {
  return absl::StrFormat(" from %s to ", host_identity.substr(0, kHostCharacters));
}

std::string NotOf(const Profile& profile, std::string_view wanted) {
  return absl::StrFormat("it is of '%s', not of '%s'", profile.subject, wanted);
}

Json CurveJson(const ComputeCurve& curve) {
  Json anchors = Json::array();
  for (uint32_t i = 0; i < curve.anchor_count; ++i) {
    anchors.push_back(
        {{"query_rows", curve.anchors[i].rows}, {"us_per_token", curve.anchors[i].us_per_token}});
  }
  return {{"base_us", curve.base_us},
          {"per_row_us", curve.per_row_us},
          {"anchors", anchors},
          {"floor_us_per_token", curve.floor.us_per_token},
          {"floor_shown_share", curve.floor.shown_share}};
}

absl::Status Malformed(std::string_view field, std::string_view why) {
  return absl::InvalidArgumentError(absl::StrFormat("profile: %s: %s", field, why));
}

absl::StatusOr<const nlohmann::json*> Field(const nlohmann::json& object, const char* name,
                                            nlohmann::json::value_t type) {
  if (!object.is_object()) return Malformed(name, "its parent is not an object");
  const auto found = object.find(name);
  if (found == object.end()) return Malformed(name, "missing");
  if (found->type() != type) return Malformed(name, "of another type");
  return &*found;
}

absl::Status ReadNumber(const nlohmann::json& object, const char* name, double* value) {
  const auto found = object.is_object() ? object.find(name) : object.end();
  if (!object.is_object() || found == object.end()) return Malformed(name, "missing");
  if (!found->is_number()) return Malformed(name, "not a number");
  *value = found->get<double>();
  if (!std::isfinite(*value) || *value < 0) return Malformed(name, "negative or not finite");
  return absl::OkStatus();
}

absl::Status ReadText(const nlohmann::json& object, const char* name, std::string* value) {
  CKV_ASSIGN_OR_RETURN(const nlohmann::json* text,
                       Field(object, name, nlohmann::json::value_t::string));
  *value = text->get<std::string>();
  return absl::OkStatus();
}

absl::Status ReadTarget(const nlohmann::json& object, KernelTargetId* target) {
  std::string name;
  CKV_RETURN_IF_ERROR(ReadText(object, "kernel_target", &name));
  *target = KernelTargetIdOf(name);
  return absl::OkStatus();
}

absl::Status ReadFloor(const nlohmann::json& object, MemoryFloor* floor) {
  CKV_RETURN_IF_ERROR(ReadNumber(object, "floor_us_per_token", &floor->us_per_token));
  CKV_RETURN_IF_ERROR(ReadNumber(object, "floor_shown_share", &floor->shown_share));
  return floor->shown_share > 1 ? Malformed("floor_shown_share", "above 1") : absl::OkStatus();
}

absl::Status ReadCurve(const nlohmann::json& parent, const char* name, ComputeCurve* curve) {
  CKV_ASSIGN_OR_RETURN(const nlohmann::json* object,
                       Field(parent, name, nlohmann::json::value_t::object));
  CKV_RETURN_IF_ERROR(ReadNumber(*object, "base_us", &curve->base_us));
  CKV_RETURN_IF_ERROR(ReadNumber(*object, "per_row_us", &curve->per_row_us));
  CKV_ASSIGN_OR_RETURN(const nlohmann::json* anchors,
                       Field(*object, "anchors", nlohmann::json::value_t::array));
  if (anchors->size() > ComputeCurve::kAnchorCountMax) return Malformed("anchors", "too many");
  double before = 0;
  for (const nlohmann::json& anchor : *anchors) {
    ComputeAnchor& to = curve->anchors[curve->anchor_count++];
    CKV_RETURN_IF_ERROR(ReadNumber(anchor, "query_rows", &to.rows));
    CKV_RETURN_IF_ERROR(ReadNumber(anchor, "us_per_token", &to.us_per_token));
    if (to.rows <= before) return Malformed("query_rows", "not ascending");
    before = to.rows;
  }
  return ReadFloor(*object, &curve->floor);
}

// May be missing, as in a file written by hand. A calibration measures up to 16 calls at once.
absl::Status ReadElbow(const nlohmann::json& object, const char* name, uint32_t* elbow) {
  constexpr double kElbowMax = 1024;
  double value = 0;
  if (!object.contains(name)) return absl::OkStatus();
  CKV_RETURN_IF_ERROR(ReadNumber(object, name, &value));
  if (value > kElbowMax || value != std::floor(value))
    return Malformed(name, absl::StrFormat("not a whole number up to %g", kElbowMax));
  *elbow = static_cast<uint32_t>(value);
  return absl::OkStatus();
}

// May be missing, like an elbow.
absl::Status ReadColdExchange(const nlohmann::json& parent, ColdExchange* cold) {
  constexpr const char* kName = "cold_exchange";
  if (!parent.contains(kName)) return absl::OkStatus();
  CKV_ASSIGN_OR_RETURN(const nlohmann::json* object,
                       Field(parent, kName, nlohmann::json::value_t::object));
  CKV_RETURN_IF_ERROR(ReadNumber(*object, "fixed_us", &cold->fixed_us));
  CKV_RETURN_IF_ERROR(ReadNumber(*object, "us_per_byte", &cold->us_per_byte));
  return ReadNumber(*object, "cache_bytes", &cold->cache_bytes);
}

absl::StatusOr<LaneProfile> ReadLane(const nlohmann::json& object) {
  LaneProfile lane;
  CKV_RETURN_IF_ERROR(ReadText(object, "holder", &lane.holder));
  CKV_RETURN_IF_ERROR(ReadText(object, "fabric", &lane.fabric));
  CKV_RETURN_IF_ERROR(ReadNumber(object, "t_probe_us", &lane.constants.t_probe_us));
  CKV_RETURN_IF_ERROR(ReadTarget(object, &lane.kernel_target));
  CKV_RETURN_IF_ERROR(
      ReadNumber(object, "bandwidth_bytes_per_s", &lane.constants.bandwidth_bytes_per_s));
  CKV_RETURN_IF_ERROR(ReadNumber(object, "fetch_bandwidth_bytes_per_s",
                                 &lane.constants.fetch_bandwidth_bytes_per_s));
  CKV_RETURN_IF_ERROR(ReadNumber(object, "wire_share", &lane.wire_share));
  CKV_RETURN_IF_ERROR(ReadNumber(object, "burst_bytes", &lane.burst_bytes));
  CKV_RETURN_IF_ERROR(ReadNumber(object, "splice_share", &lane.splice_share));
  CKV_RETURN_IF_ERROR(ReadColdExchange(object, &lane.cold_exchange));
  CKV_RETURN_IF_ERROR(ReadElbow(object, "route_elbow", &lane.route_elbow));
  CKV_RETURN_IF_ERROR(ReadElbow(object, "fetch_elbow", &lane.fetch_elbow));
  CKV_RETURN_IF_ERROR(ReadCurve(object, "compute", &lane.compute));
  return lane;
}

absl::Status CheckVersion(const nlohmann::json& json) {
  double version = 0;
  CKV_RETURN_IF_ERROR(ReadNumber(json, "version", &version));
  if (version == kProfileVersion) return absl::OkStatus();
  return Malformed("version",
                   absl::StrFormat("%g, but only %d can be read here: run ckvctl calibrate again",
                                   version, kProfileVersion));
}

}  // namespace

const LaneProfile* Profile::Find(std::string_view holder, std::string_view fabric) const {
  const auto found = std::find_if(lanes.begin(), lanes.end(), [&](const LaneProfile& lane) {
    return lane.holder == holder && lane.fabric == fabric;
  });
  return found == lanes.end() ? nullptr : &*found;
}

std::string SubjectOf(const Geometry& geometry, std::string_view host_identity,
                      std::span<const std::string> holders, bool quick) {
  return absl::StrFormat("%s%s%s, %s", geometry.ToString(), From(host_identity),
                         absl::StrJoin(holders, " "), quick ? "quick" : "full");
}

std::string WhyNotOf(const Profile& profile, const Geometry& geometry,
                     std::string_view host_identity, KernelTargetId target) {
  if (std::string why_not = WhyNotFrom(profile, host_identity); !why_not.empty()) return why_not;
  const std::string wanted = absl::StrFormat("x%s ", geometry.widths().ToString());
  if (profile.subject.find(wanted) == std::string::npos)
    return "of rows of other widths: " + NotOf(profile, "..." + wanted + "...");
  if (profile.kernel_target == KernelTargetId::kUnknown || profile.kernel_target == target)
    return "";
  return absl::StrFormat("of another kernel target: it is of %s, not of %s",
                         KernelTargetName(profile.kernel_target), KernelTargetName(target));
}

RequesterConstants HereFor(const Profile& profile, const Geometry& geometry) {
  RequesterConstants here = profile.here;
  if (!profile.subject.starts_with(absl::StrFormat("%s@%s ", geometry.model, geometry.revision)))
    here.prefill_per_token_layer_us.reset();
  return here;
}

std::string WhyNotFrom(const Profile& profile, std::string_view host_identity) {
  const std::string wanted = From(host_identity);
  if (profile.subject.find(wanted) != std::string::npos) return "";
  return kOtherHost + NotOf(profile, "..." + wanted + "...");
}

std::string FormatProfile(const Profile& profile) {
  Json lanes = Json::array();
  for (const LaneProfile& lane : profile.lanes) {
    lanes.push_back({{"holder", lane.holder},
                     {"fabric", lane.fabric},
                     {"kernel_target", KernelTargetName(lane.kernel_target)},
                     {"t_probe_us", lane.constants.t_probe_us},
                     {"bandwidth_bytes_per_s", lane.constants.bandwidth_bytes_per_s},
                     {"fetch_bandwidth_bytes_per_s", lane.constants.fetch_bandwidth_bytes_per_s},
                     {"wire_share", lane.wire_share},
                     {"burst_bytes", lane.burst_bytes},
                     {"splice_share", lane.splice_share},
                     {"cold_exchange",
                      {{"fixed_us", lane.cold_exchange.fixed_us},
                       {"us_per_byte", lane.cold_exchange.us_per_byte},
                       {"cache_bytes", lane.cold_exchange.cache_bytes}}},
                     {"route_elbow", lane.route_elbow},
                     {"fetch_elbow", lane.fetch_elbow},
                     {"compute", CurveJson(lane.compute)}});
  }
  Json here = {{"kernel_target", KernelTargetName(profile.kernel_target)},
               {"merge_per_row_us", profile.here.merge_per_row_us},
               {"splice_per_token_layer_us", profile.here.splice_per_token_layer_us},
               {"splice_per_layer_us", profile.here.splice_per_layer_us}};
  if (profile.here.prefill_per_token_layer_us)
    here["prefill_per_token_layer_us"] = *profile.here.prefill_per_token_layer_us;
  here["compute"] = CurveJson(profile.here.attend);
  Json json = {
      {"version", kProfileVersion}, {"subject", profile.subject}, {"here", here}, {"lanes", lanes}};
  if (profile.kernel) json["kernel"] = KernelRecordJson(*profile.kernel);
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

absl::StatusOr<Profile> ParseProfile(std::string_view text) {
  CKV_ASSIGN_OR_RETURN(const nlohmann::json json, ParseJson(text, kDepthMax));
  CKV_RETURN_IF_ERROR(CheckVersion(json));
  Profile profile;
  CKV_RETURN_IF_ERROR(ReadText(json, "subject", &profile.subject));
  CKV_ASSIGN_OR_RETURN(const nlohmann::json* here,
                       Field(json, "here", nlohmann::json::value_t::object));
  CKV_RETURN_IF_ERROR(ReadTarget(*here, &profile.kernel_target));
  CKV_RETURN_IF_ERROR(ReadNumber(*here, "merge_per_row_us", &profile.here.merge_per_row_us));
  CKV_RETURN_IF_ERROR(
      ReadNumber(*here, "splice_per_token_layer_us", &profile.here.splice_per_token_layer_us));
  CKV_RETURN_IF_ERROR(ReadNumber(*here, "splice_per_layer_us", &profile.here.splice_per_layer_us));
  if (here->contains("prefill_per_token_layer_us")) {
    profile.here.prefill_per_token_layer_us = 0;
    CKV_RETURN_IF_ERROR(
        ReadNumber(*here, "prefill_per_token_layer_us", &*profile.here.prefill_per_token_layer_us));
  }
  CKV_RETURN_IF_ERROR(ReadCurve(*here, "compute", &profile.here.attend));
  CKV_ASSIGN_OR_RETURN(const nlohmann::json* lanes,
                       Field(json, "lanes", nlohmann::json::value_t::array));
  if (lanes->size() > kProfileLaneCountMax) return Malformed("lanes", "too many");
  for (const nlohmann::json& object : *lanes) {
    CKV_ASSIGN_OR_RETURN(LaneProfile lane, ReadLane(object));
    profile.lanes.push_back(std::move(lane));
  }
  if (json.contains("kernel")) {
    CKV_ASSIGN_OR_RETURN(profile.kernel, ReadKernelRecord(json["kernel"]));
  }
  return profile;
}

absl::Status WriteProfile(const std::string& path, const Profile& profile) {
  return WriteOutput(path, FormatProfile(profile));
}

absl::StatusOr<Profile> ReadProfile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return absl::NotFoundError(absl::StrFormat("%s: no such file", path));
  std::string text(kFileBytesMax + 1, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(in.gcount()));
  if (text.size() > kFileBytesMax)
    return absl::InvalidArgumentError(absl::StrFormat("%s: more than 16 MiB", path));
  auto profile = ParseProfile(text);
  if (!profile.ok()) return Annotate(profile.status(), path);
  return profile;
}

}  // namespace ckv
