#include "client/ctl/top/top_view.h"

namespace ckv::ctl {
namespace {

Json RateJson(PerSecond rate) { return rate ? Json(*rate) : Json(); }

// Null if nothing was timed.
Json QuantileJson(const LatencyCounts& counts, double share) {
  return counts.total() == 0 ? Json()
                             : Json(static_cast<double>(counts.Quantile(share).count()) / 1e3);
}

Json TopHolderJson(const TopHolder& h) {
  return {{"name", h.name},
          {"address", h.address},
          {"kernel_target", h.kernel_target},
          {"requests_per_s", RateJson(h.requests)},
          {"query_rows_per_s", RateJson(h.query_rows)},
          {"errors_per_s", RateJson(h.errors)},
          {"refused_per_s", RateJson(h.refused)},
          {"bytes_in_per_s", RateJson(h.bytes_in)},
          {"bytes_out_per_s", RateJson(h.bytes_out)},
          {"busy", RateJson(h.busy)},
          {"waiting_count", h.waiting_count},
          {"session_count", h.session_count},
          {"chunk_count", h.chunk_count},
          {"used_bytes", h.used_bytes},
          {"capacity_bytes", h.capacity_bytes},
          {"wait_p50_us", QuantileJson(h.wait, .5)},
          {"wait_p99_us", QuantileJson(h.wait, .99)},
          {"kernel_p50_us", QuantileJson(h.kernel, .5)},
          {"kernel_p99_us", QuantileJson(h.kernel, .99)}};
}

Json TopRequesterJson(const TopRequester& r) {
  return {{"name", r.name},
          {"address", r.address},
          {"route_per_s", RateJson(r.route)},
          {"near_per_s", RateJson(r.near)},
          {"fetch_per_s", RateJson(r.fetch)},
          {"pull_per_s", RateJson(r.pull)},
          {"local_per_s", RateJson(r.local)},
          {"errors_per_s", RateJson(r.errors)},
          {"attend_p50_us", QuantileJson(r.attends, .5)},
          {"attend_p99_us", QuantileJson(r.attends, .99)},
          {"near_bytes", r.near_bytes},
          {"near_bytes_max", r.near_bytes_max}};
}

}  // namespace

Json TopJson(const TopView& view) {
  Json json = {{"seconds", RateJson(view.seconds)}, {"directory", view.directory},
               {"findings", Json::array()},         {"holders", Json::array()},
               {"requesters", Json::array()},       {"times", Json::array()},
               {"corpora", Json::array()},          {"decisions", Json::array()}};
  for (const TopProblem& problem : view.problems)
    json["findings"].push_back(
        {{"code", problem.code}, {"what", problem.what}, {"why", problem.why}});
  for (const TopHolder& holder : view.holders) json["holders"].push_back(TopHolderJson(holder));
  for (const TopRequester& one : view.requesters)
    json["requesters"].push_back(TopRequesterJson(one));
  for (const TopTime& time : view.times) {
    json["times"].push_back({{"of", time.of},
                             {"per_s", RateJson(time.rate)},
                             {"count", time.counts.total()},
                             {"p50_us", QuantileJson(time.counts, .5)},
                             {"p99_us", QuantileJson(time.counts, .99)}});
  }
  for (const TopCorpus& corpus : view.corpora) {
    json["corpora"].push_back({{"name", corpus.name.empty() ? Json() : Json(corpus.name)},
                               {"attends_per_s", RateJson(corpus.calls)},
                               {"query_rows_per_s", RateJson(corpus.query_rows)},
                               {"attend_count", corpus.call_count}});
  }
  for (const TopDecision& decision : view.decisions) {
    json["decisions"].push_back({{"primitive", decision.primitive},
                                 {"reason", decision.reason},
                                 {"per_s", RateJson(decision.rate)},
                                 {"count", decision.count}});
  }
  return json;
}

}  // namespace ckv::ctl
