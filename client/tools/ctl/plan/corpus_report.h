// The results of ckvctl plan corpus, as tables for people, JSON and CSV.

#pragma once

#include <string>
#include <vector>

#include "client/sizing/corpus_search.h"
#include "client/tools/ctl/csv_file.h"
#include "client/tools/ctl/output.h"

namespace ckv::ctl {

std::string CorpusPlanText(const CorpusPlanInput& input, const CorpusPlan& plan);

// An object with "answer", "corpus", "load", "goal", "cheapest" (null if none), and a list for each
// table: "machines", "holders", "choices", "changes". Entries of lists are flat. Times that are
// infinite are null.
Json CorpusPlanJson(const CorpusPlanInput& input, const CorpusPlan& plan);

// machines.csv, holders.csv, choices.csv and changes.csv: the lists of CorpusPlanJson.
std::vector<CsvFile> CorpusPlanCsv(const Json& json);

}  // namespace ckv::ctl
