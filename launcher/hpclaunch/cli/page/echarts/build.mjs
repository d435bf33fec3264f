// The parts of ECharts that the page of `hpclaunch report --html` draws with. echarts.min.js is made
// of this file:
//
//   npm install --no-save echarts@6.1.0 esbuild@0.28.2
//   npx esbuild build.mjs --bundle --minify --target=es2020 --format=iife --global-name=echarts \
//     --legal-comments=none --outfile=echarts.min.js --banner:js="/* Apache ECharts 6.1.0, \
//   Copyright 2017-2026 The Apache Software Foundation, Apache License 2.0; zrender, \
//   Copyright 2017 Baidu Inc., and parts of d3, Copyright 2010-2016 Mike Bostock, BSD 3-Clause. */"
import { use } from "echarts/core";
import { CustomChart, LineChart, ScatterChart } from "echarts/charts";
import { DataZoomInsideComponent, GridComponent, TooltipComponent } from "echarts/components";
import { SVGRenderer } from "echarts/renderers";

use([CustomChart, LineChart, ScatterChart]);
use([DataZoomInsideComponent, GridComponent, TooltipComponent, SVGRenderer]);
export { getInstanceByDom, graphic, init, time } from "echarts/core";
