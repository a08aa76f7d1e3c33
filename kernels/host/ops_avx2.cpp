#define ONEBIT_ISA_NAMESPACE ops_avx2

#include "ops_table.inc.h"
