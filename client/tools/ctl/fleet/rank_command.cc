// ckvctl rank: the requesters that could decode a request, with every term of each one's cost.
// Asks the directory that leads (RequestOf), reads its reply as a ranking, and prints a row for
// each requester (RowOf), the choice, and how much error of congestion the choice tolerates.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "client/grpc/rank_convert.h"
#include "client/rank/ranking_json.h"
#include "client/tools/ctl/checks.h"
#include "client/tools/ctl/commands.h"
#include "proto/base/status.h"

namespace ckv::ctl {
namespace {

struct RankOptions {
  std::string corpus;
  uint64_t tokens = 0;
  uint64_t cache_bytes = 0;
  uint64_t reserve_bytes = 0;
  bool prefix_only = false;
  std::vector<std::string> from_hosts;
  std::vector<double> in_flight;
};

v1::RankRequest RequestOf(const RankOptions& options, const std::string& tenant) {
  v1::RankRequest request;
  request.set_tokens(static_cast<double>(options.tokens));
  request.set_cache_bytes(static_cast<double>(options.cache_bytes));
  request.set_reserve_bytes(static_cast<double>(options.reserve_bytes));
  request.set_corpus(options.corpus);
  request.set_tenant(tenant);
  request.set_prefix_only(options.prefix_only);
  for (const std::string& host : options.from_hosts) request.add_from_hosts(host);
  for (const double count : options.in_flight) request.add_in_flight(count);
  request.set_with_tolerance(true);
  return request;
}

std::string RankBytes(double bytes) { return FormatBytes(static_cast<uint64_t>(bytes)); }

std::vector<std::string> RowOf(const RankedRequester& requester, bool is_best) {
  const bool has_path = requester.has_path;
  return {(is_best ? "* " : "  ") + requester.name,
          absl::StrFormat("%.0f", requester.matched_tokens),
          RankBytes(requester.cost.missing_bytes),
          requester.cost.has_room ? RankBytes(requester.load.free_bytes)
                                  : RankBytes(requester.load.free_bytes) + ", no room",
          !has_path                     ? "unknown"
          : requester.tier_name.empty() ? absl::StrFormat("%d", requester.path.tier)
                                        : requester.tier_name,
          has_path ? FormatRate(requester.path.bandwidth_bytes_per_s) : "-",
          has_path ? absl::StrFormat("%.0f %%", 100 * requester.path.congestion) : "-",
          has_path ? absl::StrFormat("%.0f", requester.path.in_flight) : "-",
          FormatMicroseconds(requester.cost.transfer_us),
          FormatMicroseconds(requester.cost.queue_us),
          FormatMicroseconds(requester.cost.decode_us),
          FormatMicroseconds(requester.cost.total_us)};
}

std::string RankText(const FleetRanking& ranking) {
  std::string text = absl::StrFormat("%.0f tokens, %s of KV cache\n", ranking.request.tokens,
                                     RankBytes(ranking.request.cache_bytes));
  if (ranking.requesters.empty()) {
    return text +
           "no requester reports its load to this directory: engines do so by ckv_report_load or "
           "ReportLoad\n";
  }
  Table table({{"  REQUESTER"},
               {"CACHED", true},
               {"MISSING", true},
               {"FREE", true},
               {"TIER"},
               {"RATE", true},
               {"BUSY", true},
               {"FLIGHTS", true},
               {"TRANSFER", true},
               {"QUEUE", true},
               {"DECODE", true},
               {"TOTAL", true}});
  for (size_t i = 0; i < ranking.requesters.size(); ++i)
    table.AddRow(RowOf(ranking.requesters[i], ranking.best == i));
  text += table.Render();
  if (std::any_of(ranking.requesters.begin(), ranking.requesters.end(),
                  [](const RankedRequester& requester) { return !requester.has_path; })) {
    text +=
        "unknown: the transfer costs nothing, because the directory's network oracle does not have "
        "both hosts. It reads those of a first query within a second: try again\n";
  }
  if (!ranking.best) return text + "none has room\n";
  if (!ranking.tolerated_error) return text;
  if (std::isinf(*ranking.tolerated_error))
    return text + "* is the cheapest, whatever the congestion is\n";
  return text + absl::StrFormat("* is the cheapest until congestion is off by %.0f points\n",
                                100 * *ranking.tolerated_error);
}

absl::Status RunRank(const Ctl& ctl, const RankOptions& options) {
  Fleet fleet(ctl.fleet, ctl.clock);
  const v1::RankRequest request = RequestOf(options, ctl.fleet.tenant);
  v1::RankReply reply;
  CKV_RETURN_IF_ERROR(fleet.CallDirectory(&DirectoryCaller::Stub::Rank, "Rank", request, &reply));
  CKV_ASSIGN_OR_RETURN(const FleetRanking ranking, FromProto(reply));
  ctl.Print(RankText(ranking), RankingJson(ranking));
  return absl::OkStatus();
}

}  // namespace

void AddRankCommand(CLI::App& app, Ctl& ctl) {
  auto options = std::make_shared<RankOptions>();
  CLI::App* verb = AddVerb(
      app, "rank", "Rank the requesters that could decode a request, with each term of the cost",
      "  ckvctl rank law\n"
      "  ckvctl rank law --from 10.0.0.1 --in-flight 0,2 --prefix-only\n"
      "  ckvctl rank --tokens 32768 --cache-bytes 2264924160 -o json | jq "
      "'.requesters[.best].name'\n"
      "\n"
      "Requesters are those that report their load to the directory. FREE is the memory for a KV\n"
      "cache; one without room is not chosen. RATE, BUSY and FLIGHTS describe the tier between\n"
      "the rows and the requester, as the directory's network oracle has it. * marks the choice.");
  verb->add_option("corpus", options->corpus, "the corpus that the request reads")
      ->check(NotEmpty())
      ->type_name("");
  verb->add_option("--tokens", options->tokens,
                   "tokens of the prompt; those of the corpus if unset")
      ->check(WholeNumber())
      ->type_name("N");
  verb->add_option("--cache-bytes", options->cache_bytes,
                   "bytes of the prompt's KV cache; computed from the corpus if unset")
      ->check(WholeNumber())
      ->type_name("N");
  verb->add_option("--reserve-bytes", options->reserve_bytes,
                   "bytes that must stay free on a requester")
      ->check(WholeNumber())
      ->type_name("N");
  verb->add_option("--from", options->from_hosts,
                   "hosts that have the rows, separated by commas; if unset, those of the holders")
      ->delimiter(',')
      ->type_name("HOST,...");
  verb->add_option("--in-flight", options->in_flight,
                   "the caller's own transfers by tier, separated by commas, the nearest first")
      ->delimiter(',')
      ->type_name("N,...");
  verb->add_flag("--prefix-only", options->prefix_only,
                 "count only chunks before the first that a requester lacks");
  verb->callback([&ctl, options] { ctl.run = [&ctl, options] { return RunRank(ctl, *options); }; });
}

}  // namespace ckv::ctl
