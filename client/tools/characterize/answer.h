// The first sentences of a characterization's report: the answer, or why there is none.

#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "client/tools/characterize/sample.h"

namespace ckv {

// Repeats of one measurement that are further apart than this were not of one machine in one state.
inline constexpr double kSpreadMax = 1.5;

// A constant whose repeats differ too much.
struct Disturbance {
  std::string name;   // "the kernel here", "reading rows here" or "routes over tcp"
  double spread = 0;  // above kSpreadMax
};
// Judges a run by its grid. Each point was repeated over the whole run, and its spread is the upper
// quartile of the repeats divided by the lower one. A short disturbance does not count, because
// means leave it out. A constant is disturbed if the median over its points is above kSpreadMax:
//   the kernel here     local attention of 16 or more query rows
//   reading rows here   local attention of one query row, whose time is the floor
//   routes over FABRIC  all routes of that fabric
// Returns nothing for a run that can be trusted, or if fewer than four repeats were made.
std::vector<Disturbance> DisturbancesOf(std::span<const Sample> samples);
// Returns "the kernel here: repeats differ by 1.8 x (limit 1.5); ..." or an empty string.
std::string DescribeDisturbances(std::span<const Disturbance> disturbances);

struct AnswerInput {
  std::span<const Sample> samples;
  std::string model;    // as a reader knows it
  uint32_t layers = 0;  // all of the model
  uint32_t heads = 0;   // query rows of one token
};
// Answers the question of the report: should a decode step route to a chunk elsewhere, or fetch it?
// One or two sentences, for the chunk size nearest to 2,048 tokens and the number of query rows
// nearest to one token's. The fabric is the one over which that route is fastest.
//
//   Over tcp, a decode step of deepseek-v3 (128 query rows, 61 layers) over 2048 tokens elsewhere
//   takes 12.1 ms by routing. A fetch takes 210 ms and saves 2.1 ms a step: it pays off after 100
//   steps.
//
// Returns an empty string if no such route, fetch or local attention was measured.
std::string AnswerOf(const AnswerInput& input);

}  // namespace ckv
