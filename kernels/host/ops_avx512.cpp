#define ONEBIT_ISA_NAMESPACE ops_avx512

#include "ops_table.inc.h"
